// Small helpers of all parts. Whatever came from a model enters the page through textContent alone.
const $ = (id) => document.getElementById(id);

const element = (tag, className, text) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};

const button = (text, label, onClick) => {
  const made = element("button", "", text);
  made.type = "button";
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", onClick);
  return made;
};

// Fills a select with [value, text] pairs and selects one of them.
const fill = (select, choices, chosen) => {
  select.replaceChildren(
    ...choices.map(([value, text]) => {
      const option = element("option", "", text);
      option.value = value;
      return option;
    }),
  );
  select.value = chosen;
};

const number = (value) => {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(1).replace("-", "−");
  return String(Number(value.toPrecision(3))).replace("-", "−");
};

const unique = (values) => [...new Set(values)];

// Tells those who do not see the page what has changed on it.
const say = (text) => {
  $("said").textContent = text;
};
