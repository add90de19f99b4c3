"use strict";
(() => {
  const PAGE = 20, LISTED = 200, PRINTED = 200;
  const root = document.documentElement;
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const columns = data.features, names = columns.feature;
  // of many batches a row is a feature of one of them
  const batch = columns.batch, called = (j) => (batch ? `${names[j]} · ${batch[j]}` : names[j]);
  const folded = names.map((_, j) => called(j).toLowerCase());
  const densities = new Map(data.densities.map((d) => [`${d.batch ?? ""}\u0000${d.feature}`, d]));
  const everyone = names.map((_, j) => j);

  // ---- small tools ----
  function add(parent, tag, attributes = {}, text) {
    const svg = parent.namespaceURI.endsWith("svg") || tag === "svg";
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  }
  function addName(parent, text, attributes = {}) { // broken between its parts, as in the page
    const node = add(parent, "bdi", attributes);
    text.split(/(?<=[_./:-])(?=.)|(?<=[a-z])(?=[A-Z])/u).forEach((part, k) => { if (k) add(node, "wbr"); node.append(part); });
    return node;
  }
  const known = (x) => x !== null && x !== undefined;
  function show(x) { // three digits (two below 0.1), and more before the point, as in the page
    if (!known(x)) return "–";
    const size = Math.abs(x);
    if (size < 1e-12) return "0";
    let text;
    if (size >= 1e7 || size < 1e-4) text = x.toExponential(1).replace("e+", "e");
    else if (size >= 100) text = Math.round(x).toLocaleString("en-US");
    else if (Number.isInteger(x)) text = String(x);
    else text = x.toFixed((size < 0.1 ? 1 : 2) - Math.floor(Math.log10(size)));
    return text.replaceAll("-", "−");
  }
  const percent = (x) => (known(x) ? `${Math.round(100 * x) || 0}%`.replace("-", "−") : "–");
  const range = (key, j) => known(columns[key + "_low"]?.[j]) ? `(${show(columns[key + "_low"][j])} to ${show(columns[key + "_high"][j])})` : "";
  const whole = (n) => n.toLocaleString("en-US");
  function matches(text) {
    const wanted = text.trim().toLowerCase();
    return wanted ? everyone.filter((j) => folded[j].includes(wanted)) : everyone;
  }

  // ---- colours ----
  const wantsDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : wantsDark.matches);
  const label = () => { $("theme").textContent = isDark() ? "Light colours" : "Dark colours"; };
  $("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; label(); });
  wantsDark.addEventListener("change", label);

  // ---- the table, in pages ----
  const NARROW = new Set(["offset", "kept"]); // left to the explorer where batches need a column
  const HEADS = [
    ["feature", "Feature"], ["batch", "Batch", "word"], ["verdict", "Verdict", "word"],
    ["error_after", "Error after (sd)"], ["within", "Within limits", "word"], ["mean", "Mean"], ["change", "Change at mean", "signed"],
    ["scale", "Scale", "range"], ["offset", "Offset", "range"], ["own", "Own weight"], ["slope", "Mean slope"],
    ["image_of_mean", "Mean mapped to"],
    ["shift_before", "Shift before"], ["shift_after", "Shift after"],
    ["p_adjusted", "p after, adjusted"], ["kept", "Kept", "percent"], ["pairs_icc_after", "ICC after"],
  ].filter(([key]) => columns[key] && columns[key].some(known) && !(batch && NARROW.has(key)));
  const SORTED_AS_WORDS = new Set(["feature", "batch", "verdict", "within"]);
  const SIZES = new Set(["change", "shift_before", "shift_after"]); // sorted by size, not by sign
  const table = { rows: everyone, page: 0, key: null, down: false };
  const head = $("features").tHead, body = $("features").tBodies[0];

  function order(rows) {
    const { key, down } = table;
    if (!key) return rows;
    const sign = down ? -1 : 1, values = columns[key];
    if (SORTED_AS_WORDS.has(key)) {
      const compare = new Intl.Collator("en", { numeric: true }).compare;
      return rows.toSorted((a, b) => sign * compare(values[a], values[b]));
    }
    const size = SIZES.has(key) ? Math.abs : (x) => x;
    return rows.toSorted((a, b) => {
      const one = values[a], other = values[b];
      if (!known(one) || !known(other)) return known(other) - known(one);
      return sign * (size(one) - size(other));
    });
  }
  function drawHead() {
    head.replaceChildren();
    const row = add(head, "tr");
    for (const [key, title, kind] of HEADS) {
      const cell = add(row, "th", { scope: "col", ...(kind === "word" ? { class: "text" } : {}) });
      const button = add(cell, "button", { type: "button" }, title);
      button.addEventListener("click", () => {
        table.down = table.key === key ? !table.down : key !== "feature" && key !== "p_adjusted";
        table.key = key;
        table.page = 0;
        for (const other of row.cells) other.removeAttribute("aria-sort");
        cell.setAttribute("aria-sort", table.down ? "descending" : "ascending");
        search();
      });
    }
  }
  const signed = (x) => (known(x) && x > 0 ? "+" : "") + show(x);
  function drawRows(rows) {
    body.replaceChildren();
    for (const j of rows) {
      const row = add(body, "tr");
      for (const [key, title, kind] of HEADS) {
        if (key === "feature") {
          const button = add(add(row, "th", { scope: "row" }), "button", { type: "button", class: "name", title: "Show in the feature explorer" });
          addName(button, names[j]);
          button.addEventListener("click", () => { choose(j); $("explore").scrollIntoView(); $("list").focus({ preventScroll: true }); });
          continue;
        }
        const text = { percent, signed, word: (x) => x ?? "–" }[kind] ?? show;
        const cell = add(row, "td", { "data-label": title, ...(kind === "word" ? { class: "text" } : {}) }, text(columns[key][j]));
        if (kind !== "percent" && range(key, j)) { cell.append(" "); add(cell, "span", { class: "range" }, range(key, j)); }
      }
    }
  }
  function drawTable() {
    const { rows, page } = table;
    const shown = rows.slice(page * PAGE, (page + 1) * PAGE);
    drawRows(shown);
    if (!shown.length) add(add(body, "tr"), "td", { colspan: HEADS.length, class: "text" }, "No feature has such a name.");
    const last = Math.min((page + 1) * PAGE, rows.length);
    $("shown").textContent = rows.length ? `${whole(page * PAGE + 1)} to ${whole(last)} of ${whole(rows.length)}` : "none";
    $("previous").disabled = page === 0;
    $("next").disabled = last >= rows.length;
    if ($("dots")) drawDots(shown);
  }
  function search() { table.rows = order(matches($("find").value)); drawTable(); }
  $("find").addEventListener("input", () => { table.page = 0; search(); });
  $("previous").addEventListener("click", () => { table.page -= 1; drawTable(); });
  $("next").addEventListener("click", () => { table.page += 1; drawTable(); });

  // on paper there are no pages to turn
  addEventListener("beforeprint", () => {
    drawRows(table.rows.slice(0, PRINTED));
    if (table.rows.length > PRINTED) add(add(body, "tr"), "td", { colspan: HEADS.length, class: "text" }, `The first ${whole(PRINTED)} of ${whole(table.rows.length)} ${batch ? "rows" : "features"}; save the table for all.`);
  });
  addEventListener("afterprint", drawTable);
  $("save").addEventListener("click", () => {
    const quoted = (x) => (typeof x === "string" ? `"${x.replaceAll('"', '""')}"` : x ?? "");
    const keys = Object.keys(columns);
    const lines = [keys.join(","), ...everyone.map((j) => keys.map((key) => quoted(columns[key][j])).join(","))];
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
    link.download = "features.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });

  // ---- dots and intervals ----
  function ticks(low, high, most) {
    const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const out = [];
    for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9; t += step) out.push(Math.abs(t) < step * 1e-9 ? 0 : t);
    return { places: out, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
  }
  function tickText(t, digits) { return (Math.abs(t) >= 1e6 ? t.toExponential(1) : t.toFixed(digits)).replaceAll("-", "−"); }
  // features have different units: what is drawn on one axis is in standard deviations
  const perSd = (j) => known(columns.change_sd?.[j]) && columns.change[j] ? columns.change_sd[j] / columns.change[j] : 1;
  const place = (key, j) => { const x = columns[key]?.[j]; return known(x) && key.startsWith("change") ? x * perSd(j) : x; };
  function axis(rows, key, neutral) {
    const ends = [neutral];
    for (const j of rows) for (const part of ["", "_low", "_high"]) { const x = place(key + part, j); if (known(x)) ends.push(x); }
    let low = Math.min(...ends), high = Math.max(...ends);
    const margin = 0.06 * (high - low) || 0.5;
    low -= margin; high += margin;
    return { low, high, at: (x) => `${(4 + 92 * (x - low) / (high - low)).toFixed(2)}%` };
  }
  function drawDots(rows) {
    const box = $("dots");
    box.replaceChildren();
    if (!rows.length) return;
    const grid = add(box, "div", { class: "dots" });
    const parts = [["change", `Change at the mean (sd${batch ? " of the batch" : ""})`, 0], ["scale", "Scale", 1]].filter(([key]) => columns[key]).map(([key, title, neutral]) => ({ key, title, neutral, axis: axis(rows, key, neutral) }));
    add(grid, "span");
    for (const part of parts) add(grid, "b", {}, part.title);
    for (const j of rows) {
      add(grid, "bdi", { title: called(j) }, called(j));
      for (const { key, title, neutral, axis } of parts) {
        const svg = add(grid, "svg", { width: "100%", height: 18, role: "img", "aria-label": `${title} ${show(place(key, j))}` });
        if (!known(columns[key][j])) continue;
        const x = axis.at(place(key, j));
        add(svg, "line", { x1: axis.at(neutral), x2: axis.at(neutral), y1: 0, y2: 18, class: "mark" });
        if (range(key, j)) add(svg, "line", { x1: axis.at(place(key + "_low", j)), x2: axis.at(place(key + "_high", j)), y1: 9, y2: 9, class: "bar" });
        add(svg, "circle", { cx: x, cy: 9, r: 4, class: "after" });
      }
    }
    add(grid, "span");
    for (const { axis } of parts) {
      const svg = add(grid, "svg", { width: "100%", height: 20, "aria-hidden": "true" });
      const { places, digits } = ticks(axis.low, axis.high, 5);
      for (const t of places) {
        add(svg, "line", { x1: axis.at(t), x2: axis.at(t), y1: 0, y2: 5, class: "way" });
        add(svg, "text", { x: axis.at(t), y: 17, "text-anchor": "middle" }, tickText(t, digits));
      }
    }
  }

  // ---- the explorer ----
  const list = $("list"), detail = $("detail");
  let listed = [], chosen = 0;
  function drawList() {
    const found = matches($("seek").value);
    listed = found.slice(0, LISTED);
    list.replaceChildren();
    for (const j of listed) {
      const item = add(list, "li", { id: `feature-${j}`, role: "option", "aria-selected": String(j === chosen) });
      addName(item, called(j));
      item.addEventListener("click", () => choose(j));
    }
    $("found").textContent = !found.length ? "No feature has such a name."
      : found.length > LISTED ? `The first ${LISTED} of ${whole(found.length)}; search for others.`
      : found.length === 1 ? "1 feature" : `${whole(found.length)} features${batch ? " of batches" : ""}`;
  }
  function choose(j) {
    chosen = j;
    if (!listed.includes(j)) {
      $("seek").value = j < LISTED ? "" : called(j);
      drawList();
    }
    for (const item of list.children) item.setAttribute("aria-selected", String(item.id === `feature-${j}`));
    list.setAttribute("aria-activedescendant", `feature-${j}`);
    const item = $(`feature-${j}`);
    if (item && (item.offsetTop < list.offsetTop + list.scrollTop || item.offsetTop + item.offsetHeight > list.offsetTop + list.scrollTop + list.clientHeight)) list.scrollTop = item.offsetTop - list.offsetTop - list.clientHeight / 2;
    drawDetail(j);
  }
  list.addEventListener("keydown", (event) => {
    const at = listed.indexOf(chosen);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: listed.length - 1, PageDown: at + 10, PageUp: at - 10 }[event.key];
    if (to === undefined || !listed.length) return;
    event.preventDefault();
    choose(listed[Math.max(0, Math.min(listed.length - 1, to))]);
  });
  $("seek").addEventListener("input", drawList);
  $("seek").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== "ArrowDown") return;
    event.preventDefault();
    if (listed.length && !listed.includes(chosen)) choose(listed[0]);
    list.focus();
  });

  function drawDetail(j) {
    detail.replaceChildren();
    addName(add(detail, "h3"), called(j));
    const cards = add(detail, "dl", { class: "cards" });
    const card = (title, value, more) => {
      const box = add(cards, "div");
      add(box, "dt", {}, title);
      const dd = add(box, "dd", {}, value);
      if (more) { dd.append(" "); add(dd, "small", more.startsWith("(") ? { class: "range" } : {}, more); }
    };
    const get = (key) => columns[key]?.[j];
    if (columns.change) card("Change at the mean", signed(get("change")), range("change", j));
    if (columns.mean) card("Mean, mapped to", `${show(get("mean"))} → ${show(known(get("mean")) ? get("mean") + get("change") : null)}`);
    if (columns.scale) card("Scale", show(get("scale")), range("scale", j));
    if (columns.offset) card("Offset", show(get("offset")), range("offset", j));
    if (columns.own) card("Own weight", show(get("own")));
    if (columns.hidden_10) card("Off at most, if 10% was missed", `${show(get("hidden_10"))} sd`);
    if (columns.image_of_mean) card("Mean mapped to", show(get("image_of_mean")));
    if (columns.shift_before) {
      card("Shift, before → after", `${show(get("shift_before"))} → ${show(get("shift_after"))}`, "sd");
      card("Spread ratio, before → after", `${show(get("sd_ratio_before"))} → ${show(get("sd_ratio_after"))}`);
      card("p after (adjusted)", show(get("p")), `(${show(get("p_adjusted"))})`);
      card("Explained by confounders", show(get("explained_difference")), "sd");
      if (known(get("kept"))) card("Of this kept", percent(get("kept")));
      else card("Of this kept", "cannot be told", "too small beside chance");
    }
    const curves = densities.get(`${batch?.[j] ?? ""}\u0000${names[j]}`);
    if (!curves) {
      if (data.densities.length) add(detail, "p", { class: "note" }, `Pictures are kept for the ${data.densities.length} most shifted features only.`);
      return;
    }
    const legend = add(detail, "p", { class: "legend" });
    for (const [kind, text] of (batch ? [["reference", "all others, mapped"], ["dash", "this batch, as it is"], ["line", "this batch, mapped"]] : [["reference", "reference"], ["dash", "query, as it is"], ["line", "query, mapped"]])) { add(legend, "span", { class: `key ${kind}` }); legend.append(` ${text} `); }
    const panels = add(detail, "div", { class: "panels" });
    const top = curves.strata.length > 1 ? "All rows" : "All rows compared";
    for (const stratum of curves.strata) drawPanel(panels, stratum, curves.grid, stratum.stratum === "all" ? top : stratum.stratum, names[j]);
  }
  function drawPanel(parent, stratum, [low, high], title, feature) {
    const W = 300, H = 150, FOOT = 20;
    const box = add(parent, "figure");
    add(add(box, "figcaption"), "bdi", {}, title);
    const svg = add(box, "svg", { viewBox: `0 0 ${W} ${H + FOOT}`, role: "img" });
    add(svg, "title", {}, `Densities of ${feature}: ${title}`);
    const parts = ["reference", "before", "after"], shown = parts.filter((key) => stratum[key]);
    add(svg, "desc", {}, `Smoothed histograms of ${["reference", "query as it is", "query mapped"].filter((_, k) => stratum[parts[k]]).join(", ") || "nothing: too few rows"}.`);
    const most = Math.max(...shown.flatMap((key) => stratum[key]), 1e-300);
    const path = (values) => values.map((y, k) => `${k ? "L" : "M"}${(W * k / (values.length - 1)).toFixed(1)} ${(H - (H - 8) * y / most).toFixed(1)}`).join("");
    if (stratum.reference) {
      add(svg, "path", { d: `${path(stratum.reference)}L${W} ${H}L0 ${H}Z`, class: "area" });
      add(svg, "path", { d: path(stratum.reference), class: "edge" });
    }
    for (const key of ["before", "after"]) if (stratum[key]) add(svg, "path", { d: path(stratum[key]), class: `curve ${key}` });
    add(svg, "line", { x1: 0, x2: W, y1: H, y2: H, class: "way" });
    const { places, digits } = ticks(low, high, 7);
    for (const t of places) {
      const x = W * (t - low) / (high - low);
      if (x > 12 && x < W - 12) add(svg, "text", { x: x.toFixed(1), y: H + 14, "text-anchor": "middle" }, tickText(t, digits));
    }
    if (shown.length < 3) add(box, "p", { class: "note" }, shown.length ? "Some curves have too few rows to be shown." : "Too few rows to be shown.");
  }

  // ---- copying ----
  for (const button of document.querySelectorAll("[data-copies]")) button.addEventListener("click", async () => {
    const node = $(button.dataset.copies);
    try {
      await navigator.clipboard.writeText(node.textContent);
    } catch {
      getSelection().selectAllChildren(node);
      document.execCommand("copy");
    }
    $("copied").textContent = "Copied";
    setTimeout(() => { $("copied").textContent = ""; }, 2000);
  });

  root.classList.add("has-js");
  label();
  drawHead();
  drawTable();
  drawList();
  if (names.length) choose(0);
})();
