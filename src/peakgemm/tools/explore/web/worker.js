// Runs the simulator in Pyodide, beside the page: a request in, a trace or a refusal out. The page ends it to stop a run.
"use strict";

/** @type {any} */
const scope = self;
scope.importScripts("pyodide/pyodide.js");

const ready = (async () => {
  const fetched = fetch("peakgemm.zip"); // all of it at once: what takes longest is Python itself
  const pyodide = await scope.loadPyodide({ indexURL: new URL("pyodide/", scope.location.href).href, packages: ["numpy"] });
  const answered = await fetched;
  if (!answered.ok) throw new Error(`peakgemm.zip: ${answered.status} ${answered.statusText}`);
  pyodide.unpackArchive(await answered.arrayBuffer(), "zip", { extractDir: "/home/pyodide" });
  return pyodide.runPython("from browser import answer; answer");
})();

ready.then(() => scope.postMessage({ ready: true }), (error) => scope.postMessage({ failed: String(error) }));

scope.onmessage = async (/** @type {MessageEvent} */ event) => {
  try {
    const answer = await ready;
    scope.postMessage({ answer: answer(event.data) });
  } catch (error) {
    scope.postMessage({ failed: String(error) });
  }
};
