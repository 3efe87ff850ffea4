// Runs before the first paint, so that a chosen theme does not flash.
try {
  const theme = localStorage.getItem("tidemill-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be closed; the theme of the system holds.
}
