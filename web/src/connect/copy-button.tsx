import { useEffect, useState } from "react";

/** Copies a text; says so, also to who cannot see the button. */
export function CopyButton({ text, what }: { text: string; what: string }) {
  const [said, setSaid] = useState("");
  useEffect(() => {
    if (!said) return;
    const timer = setTimeout(() => setSaid(""), 2_500);
    return () => clearTimeout(timer);
  }, [said]);

  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      // Without a secure origin there is no clipboard: the text itself can be selected.
      setSaid("Select and copy it");
    }
  }
  return (
    <>
      <button type="button" className="copy" onClick={copy} aria-label={`Copy the ${what}`}>
        {said || "Copy"}
      </button>
      <span className="unseen" role="status">
        {said}
      </span>
    </>
  );
}
