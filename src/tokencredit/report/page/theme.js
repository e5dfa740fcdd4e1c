// Light, dark, or as the system has it.
const THEMES = ["auto", "light", "dark"];
let theme = 0;

$("theme").addEventListener("click", () => {
  theme = (theme + 1) % THEMES.length;
  if (theme) document.documentElement.dataset.theme = THEMES[theme];
  else delete document.documentElement.dataset.theme;
  $("theme").textContent = `Theme: ${THEMES[theme]}`;
  $("theme").setAttribute("aria-label", `Theme: ${theme ? THEMES[theme] : "as the system"}`);
});
