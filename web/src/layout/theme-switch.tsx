import { useEffect, useState } from "react";

const stored = "telltale.theme";
const themes = ["system", "light", "dark"] as const;
type Theme = (typeof themes)[number];
const known = (name: string | null): Theme => themes.find((t) => t === name) ?? "system";

/** Follows the system until the reader chooses. */
export function ThemeSwitch() {
  const [theme, setTheme] = useState<Theme>(() => known(localStorage.getItem(stored)));
  useEffect(() => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    localStorage.setItem(stored, theme);
    window.dispatchEvent(new Event("telltale-theme"));
  }, [theme]);
  return (
    <label className="theme">
      <span>Theme</span>
      <select value={theme} onChange={(e) => setTheme(known(e.target.value))}>
        {themes.map((t) => (
          <option key={t}>{t}</option>
        ))}
      </select>
    </label>
  );
}
