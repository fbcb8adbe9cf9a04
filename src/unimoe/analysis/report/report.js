"use strict";

// Boxes that hide a part of their width say so. Folded ones have no width, and are looked at when they unfold.
{
  const watch = new ResizeObserver((entries) => {
    for (const { target } of entries) target.classList.toggle("wide", target.scrollWidth > target.clientWidth);
  });
  for (const box of document.querySelectorAll(".scroll")) watch.observe(box);
}

// The drill-down. Without this script the page shows the first rows as a plain table.
(() => {
  const table = document.getElementById("queries");
  if (!table) return;

  const STEP = 50;
  const { places, rows } = JSON.parse(document.getElementById("queries-data").textContent);
  const body = table.tBodies[0];
  const heads = [...table.tHead.querySelectorAll("th[data-key]")];
  const search = document.getElementById("queries-search");
  const place = document.getElementById("queries-place");
  const status = document.getElementById("queries-status");
  const more = document.getElementById("queries-more");
  const collator = new Intl.Collator("en", { numeric: true });

  const values = {
    place: (row) => places[row.place],
    query: (row) => row.text || row.id,
    first: (row) => row.first,
    second: (row) => row.second,
    difference: (row) => row.difference,
    share: (row) => row.share,
    ranks: (row) => row.best,
  };
  const all = rows.map(([at, id, text, first, second, difference, share, ranks, best]) => ({
    place: at, id, text, first, second, difference, share, ranks, best,
    haystack: [places[at], id, text, ...ranks].join("\n").toLowerCase(),
  }));

  let found = all;
  let shown = STEP;
  let sorted = null;
  let ascending = true;

  const cell = (tag, className, ...children) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    made.append(...children);
    return made;
  };
  const isolated = (text, tag = "bdi", className = "") => {
    const made = cell(tag, className);
    made.dir = "auto";
    made.textContent = text;
    return made;
  };
  const number = (value, digits) => cell("td", "", value.toFixed(digits).replace("-", "−"));
  const signed = (value, digits) => {
    const text = Math.abs(value).toFixed(digits);
    return cell("td", "", (Number(text) === 0 ? "" : value < 0 ? "−" : "+") + text);
  };

  const rendered = (row) => {
    const ranks = cell("ul", "", ...row.ranks.map((text) => isolated(text, "li")));
    const query = cell("td", "query", isolated(row.text, "span"), isolated(row.id, "span", "id"));
    return cell(
      "tr", "",
      cell("td", "words", isolated(places[row.place])), query,
      number(row.first, 2), number(row.second, 2), signed(row.difference, 2), signed(row.share, 3),
      cell("td", "words", ranks),
    );
  };

  const compare = (key) => (a, b) => {
    const [left, right] = [values[key](a), values[key](b)];
    if (left === null || right === null) return (left === null) - (right === null); // no number comes last, either way
    const order = typeof left === "number" ? left - right : collator.compare(left, right);
    return ascending ? order : -order;
  };

  const draw = () => {
    body.replaceChildren(...found.slice(0, shown).map(rendered));
    const count = Math.min(shown, found.length);
    const matching = found.length === all.length ? `${all.length} queries` : `${found.length} of ${all.length} queries match`;
    status.textContent = found.length ? `${matching}, ${count} shown` : "No query matches";
    more.hidden = count === found.length;
  };

  const update = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = all.filter((row) =>
      (place.value === "" || row.place === Number(place.value)) && words.every((word) => row.haystack.includes(word)));
    if (sorted) found.sort(compare(sorted));
    shown = STEP;
    draw();
  };

  const sortBy = (head) => {
    const key = head.dataset.key;
    ascending = sorted === key ? !ascending : head.dataset.first === "ascending";
    sorted = key;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    update();
  };

  for (const head of heads) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sortBy(head));
    head.append(button);
  }
  search.addEventListener("input", update);
  place.addEventListener("change", update);
  more.addEventListener("click", () => { shown += STEP; draw(); });
  document.documentElement.classList.add("scripted");
  draw();
})();

// Paper has nothing to click: what is folded is printed open, and folded again afterwards.
(() => {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });
})();
