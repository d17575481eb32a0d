/** The controls of an explorer: sliders with their values, menus, boxes to tick. */

import { said, type Tongue } from "../language";
import { unique } from "../unique";
import { offered, type Answer, type Control, type State, type Value } from "./data";

export class ControlView {
  readonly element = document.createElement("div");
  private readonly label = document.createElement("label");
  private readonly output = document.createElement("output");
  private readonly input: HTMLInputElement | HTMLSelectElement;
  private values: Value[] = [];

  constructor(
    readonly control: Control,
    private readonly changed: (value: Value) => void,
  ) {
    const [first] = control.values;
    const kind = typeof first === "boolean" ? "checkbox" : "range";
    const menu = kind === "range" && (control.menu || typeof first === "string");
    this.input = document.createElement(menu ? "select" : "input");
    if (this.input instanceof HTMLInputElement) this.input.type = kind;
    this.element.className = `simlab-control simlab-${menu ? "menu" : kind}`;
    this.input.id = this.label.htmlFor = unique("control");
    this.element.dataset.control = control.name;
    this.input.addEventListener("input", () => this.read());
    this.element.addEventListener("keydown", (event) => event.stopPropagation()); // JupyterLab's keys
    const head = document.createElement("span");
    head.append(this.label, this.output);
    this.element.append(...(kind === "checkbox" ? [this.input, this.label] : [head, this.input]));
  }

  private read(): void {
    const { input } = this;
    if (input instanceof HTMLSelectElement) this.changed(this.values[input.selectedIndex]);
    else this.changed(input.type === "checkbox" ? input.checked : this.values[Number(input.value)]);
  }

  /** Shows the state's value among what the answer offers. */
  put(state: State, answer: Answer | undefined, tongue: Tongue): void {
    const { control, input } = this;
    this.values = offered(control, answer);
    const at = this.values.indexOf(state[control.name]);
    // its range follows from other controls, which leave nothing to choose
    this.element.hidden = control.values.length < 2 && this.values.length < 2;
    const text = this.text(this.values[at] ?? state[control.name], tongue);
    this.label.textContent = control.label[tongue];
    const idle = answer?.idle?.[control.name];
    this.element.title = idle?.[tongue] ?? "";
    this.element.classList.toggle("simlab-idle", idle !== undefined);
    if (idle) input.setAttribute("aria-description", idle[tongue]);
    else input.removeAttribute("aria-description");
    input.disabled = idle !== undefined;
    if (input instanceof HTMLSelectElement) {
      const texts = this.values.map((value) => this.text(value, tongue));
      if (texts.join("\n") !== [...input.options].map((option) => option.text).join("\n")) {
        input.replaceChildren(...texts.map((each) => new Option(each, each)));
      }
      input.selectedIndex = at;
      return;
    }
    if (input.type === "checkbox") {
      input.checked = Boolean(state[control.name]);
      return;
    }
    Object.assign(input, { min: "0", max: String(this.values.length - 1), step: "1" });
    input.value = String(at);
    input.disabled ||= this.values.length < 2;
    input.setAttribute("aria-valuetext", text);
    this.output.textContent = text;
  }

  private text(value: Value, tongue: Tongue): string {
    const at = this.control.values.indexOf(value);
    const plain = Number.isInteger(value) ? value.toLocaleString("en-US") : String(value);
    return said(this.control.names?.[at]?.[tongue] ?? plain, tongue);
  }

  /** Moves a slider on by one; false at its end. */
  next(state: State): Value | undefined {
    return this.values[this.values.indexOf(state[this.control.name]) + 1];
  }

  get first(): Value {
    return this.values[0];
  }
}
