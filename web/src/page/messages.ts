/** What the page and its worker say to each other. */

import type { Packed } from "../timeline/panel";

export interface Request {
  schedules: string[];
  stages: number;
  microbatches: number;
  chunks: number;
  forward_ms: number;
  backward_ms: number;
  link_ms: number;
}

export interface Figures {
  name: string;
  step_s: number;
  idle_over_makespan: number;
  peak: number;
}

export interface Answer {
  panels: Packed[];
  figures: Figures[];
  refused: [string, string][];
}

export type FromWorker =
  | { kind: "progress"; share: number; starting: boolean }
  | { kind: "ready" }
  | { kind: "answer"; answer: Answer }
  | { kind: "failed"; why: string };
