// The title of the tab: what is shown, then the product.
import { useEffect } from "react";

export function useTitle(what: string | null | undefined): void {
  useEffect(() => {
    document.title = what ? `${what} · Tidemill` : "Tidemill";
  }, [what]);
}
