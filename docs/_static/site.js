// The list of pages begins where the reader is.
document.addEventListener("DOMContentLoaded", () => {
  const list = document.querySelector(".sidebar-scroll"), here = document.querySelector(".sidebar-tree .current-page");
  if (list && here) list.scrollTo({ top: here.offsetTop - list.clientHeight / 3, behavior: "instant" });
});
