/** The timeline as an anywidget: a notebook's model has the panels, this paints them. */

import type { Packed } from "./timeline/panel";
import { Timeline } from "./timeline/timeline";

interface Model {
  get(name: "panels"): Packed[];
  get(name: "room" | "height" | "serial"): number;
  on(event: string, run: () => void): void;
  off(event: string, run: () => void): void;
}

export default {
  render({ model, el }: { model: Model; el: HTMLElement }): () => void {
    const timeline = new Timeline(el, {
      room: model.get("room"),
      fit: model.get("height") || undefined,
    });
    const show = () => timeline.show(model.get("panels"), model.get("serial"));
    show();
    model.on("change:serial", show);
    return () => {
      model.off("change:serial", show);
      timeline.stop();
    };
  },
};
