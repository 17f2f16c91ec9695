import { type RefObject, useEffect } from "react";

const typing = (target: EventTarget | null) => target instanceof HTMLInputElement || target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement;

/** `/` goes to the search field from anywhere that takes no text. */
export function useSearchKeys(field: RefObject<HTMLInputElement | null>) {
  useEffect(() => {
    const slash = (e: KeyboardEvent) => {
      if (e.key !== "/" || typing(e.target) || e.ctrlKey || e.metaKey || e.altKey) return;
      e.preventDefault();
      field.current?.focus();
    };
    window.addEventListener("keydown", slash);
    return () => window.removeEventListener("keydown", slash);
  }, [field]);
}
