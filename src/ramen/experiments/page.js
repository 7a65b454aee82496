"use strict";

/* Sort tables. Clicks on a column's head cycle through its two orders and the original one. */

const key = (row, column) => {
  const cell = row.cells[column];
  const sort = cell.dataset.sort;
  if (sort === undefined || sort === "") return null;
  return cell.dataset.kind === "number" ? Number(sort) : sort;
};

const compare = (a, b) => {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
};

const sortTable = (table, column, order) => {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  rows.sort((one, other) => {
    const first = Number(one.dataset.place) - Number(other.dataset.place);
    if (order === "none") return first;
    const a = key(one, column);
    const b = key(other, column);
    if (a === null || b === null) return (a === null) - (b === null) || first; // missing values always last
    return (order === "descending" ? compare(b, a) : compare(a, b)) || first;
  });
  body.append(...rows);
  [...table.tHead.rows[0].cells].forEach((head, number) => {
    head.setAttribute("aria-sort", number === column ? order : "none");
  });
};

const nextOrder = (head) => {
  const orders = head.dataset.kind === "number" ? ["descending", "ascending"] : ["ascending", "descending"];
  return [...orders, "none"][orders.indexOf(head.getAttribute("aria-sort")) + 1];
};

document.querySelectorAll("th > button").forEach((button) => {
  const head = button.parentElement;
  button.addEventListener("click", () => sortTable(head.closest("table"), head.cellIndex, nextOrder(head)));
});

/* Filter rows by method. */

const filter = document.getElementById("filter");

const filterRows = () => {
  const words = filter.value.toLowerCase().split(",").map((word) => word.trim()).filter(Boolean);
  let shown = 0;
  const rows = document.querySelectorAll("tr[data-method]");
  rows.forEach((row) => {
    const name = row.dataset.method.toLowerCase();
    row.hidden = words.length > 0 && !words.some((word) => name.includes(word));
    shown += !row.hidden;
  });
  document.getElementById("filter-state").textContent = words.length ? `${shown} of ${rows.length} rows` : "";
};

filter.addEventListener("input", filterRows);

/* Copy a table as CSV, with the rows that are shown, in their order. */

const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

const exact = (cell) => (cell.dataset.kind === "number" ? cell.dataset.sort ?? "" : cell.textContent.trim());

const csv = (table) => {
  const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
  const columns = [...table.tHead.rows[0].cells].map((head, number) => ({
    number,
    name: head.textContent.trim(),
    spread: [...table.tBodies[0].rows].some((row) => "deviation" in row.cells[number].dataset) && head.dataset.spread,
  }));
  const lines = [columns.flatMap(({ name, spread }) => (spread ? [name, `${name} ${spread}`] : [name]))];
  for (const row of rows) {
    lines.push(columns.flatMap(({ number, spread }) => {
      const cell = row.cells[number];
      return spread ? [exact(cell), cell.dataset.deviation ?? ""] : [exact(cell)];
    }));
  }
  return lines.map((line) => line.map(quoted).join(",")).join("\n") + "\n";
};

const copyByHand = (text) => {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "copy";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
};

const copy = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyByHand(text); // a page opened from a file may not use the clipboard API
  }
};

document.querySelectorAll("button.csv").forEach((button) => {
  const name = button.textContent;
  button.addEventListener("click", async () => {
    const done = await copy(csv(document.getElementById(button.dataset.table)));
    button.textContent = done ? "Copied" : "The browser does not allow copying";
    setTimeout(() => { button.textContent = name; }, 1500);
  });
});

/* A link to settings opens their block. */

const openTarget = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let block = target.closest("details"); block; block = block.parentElement.closest("details")) {
    block.open = true;
  }
  target.scrollIntoView();
};

window.addEventListener("hashchange", openTarget);
openTarget();

/* A second click on the same link does not change the address, but must open the block again. */
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (link && link.hash === location.hash) openTarget();
});

/* Open everything for printing, and restore it afterwards. */

let closed = [];
window.addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach((block) => { block.open = true; });
});
window.addEventListener("afterprint", () => closed.forEach((block) => { block.open = false; }));

/* Boxes that scroll sideways: show a hint while there is more to the right. */

const markBox = (box) => {
  const content = box.querySelector(".scroll, .picture");
  const hidden = content.scrollWidth - content.clientWidth;
  box.classList.toggle("overflows", hidden > 1);
  box.classList.toggle("more", hidden > 1 && content.scrollLeft < hidden - 1);
  if (content.classList.contains("scroll")) return;
  if (hidden > 1) content.setAttribute("tabindex", "0"); // so that keys can scroll it
  else content.removeAttribute("tabindex");
};

const boxes = document.querySelectorAll(".wide");
const sizes = new ResizeObserver((entries) => entries.forEach((entry) => markBox(entry.target.closest(".wide"))));
boxes.forEach((box) => {
  const content = box.querySelector(".scroll, .picture");
  content.addEventListener("scroll", () => markBox(box), { passive: true });
  sizes.observe(content);
  sizes.observe(content.firstElementChild);
});
