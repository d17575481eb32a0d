// node test_python.mjs SITE REPOSITORY WHEELS ARGUMENTS...: runs pytest in the Pyodide of the site's
// JupyterLite on its simlab, with the tests of REPOSITORY and pytest's WHEELS; exits as pytest does.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { loadPyodide } from "pyodide";

const RUN = `
import os, sys
sys.path[:0] = ["/packages", "/repository", "/repository/tests/support"]
sys.dont_write_bytecode = True
os.chdir("/repository")
import pytest, simlab
assert simlab.__file__.startswith("/packages/"), simlab.__file__
options = ["-q", "-rs", "-c", "/dev/null", "-p", "no:cacheprovider", "--rootdir=/repository"]
int(pytest.main([*options, *arguments]))
`;
const [site, repository, wheels, ...args] = process.argv.slice(2);
const folder = join(site, "jupyterlite", "static", "pyodide");
try {
  const python = await loadPyodide({ indexURL: folder, env: { QUICK: "1", CI: "1" } });
  const simlab = readdirSync(folder).filter((name) => /^sim(lab|py).*whl$/.test(name));
  const options = { extractDir: "/packages" };
  const paths = [...simlab.map((name) => join(folder, name)), ...readdirSync(wheels).map((name) => join(wheels, name))];
  for (const path of paths) python.unpackArchive(new Uint8Array(readFileSync(path)), "wheel", options);
  python.mountNodeFS("/repository", repository);
  python.globals.set("arguments", python.toPy(args));
  process.exitCode = python.runPython(RUN);
} catch (error) {
  console.error(error.message); // node would print the minified line that threw it
  process.exitCode = 1;
}
