/** An answer as JSON holds it, with its bytes again. */

export function revive(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(revive);
  if (value === null || typeof value !== "object") return value;
  const { base64 } = value as { base64?: string };
  if (base64 !== undefined) return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, revive(item)]));
}
