// node run_python.mjs SITE CODE: runs Python in the site's own Pyodide and prints what CODE gives.
// The tests compare it with CPython; nothing but the site's files is used.
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gunzipSync } from "node:zlib";
import { loadPyodide } from "pyodide";

const [site, code] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), "site-"));
const read = (name) => readFileSync(join(site, "python", name));
for (const name of ["pyodide.asm.wasm", "python_stdlib.zip"]) {
  writeFileSync(join(folder, name), gunzipSync(read(`${name}.gz`)));
}
for (const name of ["pyodide.asm.mjs", "pyodide-lock.json"]) writeFileSync(join(folder, name), read(name));
try {
  const python = await loadPyodide({ indexURL: folder });
  const packages = new Uint8Array(gunzipSync(read("packages.zip.gz"))); // not a Buffer of node
  python.unpackArchive(packages, "zip", { extractDir: "/packages" });
  console.log(python.runPython(`import sys; sys.path.insert(0, "/packages")\n${code}`));
} catch (error) {
  console.error(error.message); // node would print the minified line that threw it
  process.exitCode = 1;
}
