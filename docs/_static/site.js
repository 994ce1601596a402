// The list of pages begins where the reader is.
document.addEventListener("DOMContentLoaded", () => {
  const list = document.querySelector(".sidebar-scroll"), here = document.querySelector(".sidebar-tree .current-page");
  if (list && here) list.scrollTop = here.offsetTop - list.clientHeight / 3;
});
