// Colours come from the style sheet, so that light and dark have their own.
export function palette(): { series: string[]; grid: string; text: string } {
  const css = getComputedStyle(document.documentElement);
  const read = (name: string) => css.getPropertyValue(name).trim();
  return { series: Array.from({ length: 8 }, (_, i) => read(`--series-${i + 1}`)), grid: read("--line"), text: read("--soft") };
}
