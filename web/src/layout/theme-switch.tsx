import { useEffect, useState } from "react";

const stored = "telltale.theme";
const themes = ["system", "light", "dark"] as const;
type Theme = (typeof themes)[number];

/** Follows the system until the reader chooses. */
export function ThemeSwitch() {
  const [theme, setTheme] = useState<Theme>(() => themes.find((t) => t === localStorage.getItem(stored)) ?? "system");
  useEffect(() => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    localStorage.setItem(stored, theme);
    window.dispatchEvent(new Event("telltale-theme"));
  }, [theme]);
  const next = themes[(themes.indexOf(theme) + 1) % themes.length] ?? "system";
  return (
    <button type="button" className="quiet" onClick={() => setTheme(next)} title={`Switch to ${next}`}>
      Theme: {theme}
    </button>
  );
}
