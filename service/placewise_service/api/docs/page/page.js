// Polls the REST API and draws the answers. Text from the service is set as text, never as markup.
"use strict";

const PERIOD_MS = 2000;
const MOST_NODES_DRAWN = 500;
const find = (id) => document.getElementById(id);

function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

async function ask(path) {
  const token = sessionStorage.getItem("token");
  const answer = await fetch(path, { headers: token ? { Authorization: `Bearer ${token}` } : {} });
  find("login").hidden = answer.status !== 401;
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.detail || answer.statusText);
  return body;
}

const number = (value) => (value === undefined ? "0" : Number(value).toLocaleString("en", { maximumFractionDigits: 1 }));

function heatOf(item) {
  const rise = `${number(item.riseCelsius)} °C under load (${number(item.lowCelsius)} to ${number(item.highCelsius)})`;
  return `${rise}, ${number(item.timeConstantSeconds)} s, by ${number(item.reports)} reports`;
}

function capabilityOf(item) {
  const exact = (value) => Number(value || 0).toPrecision(3);
  const interval = `${exact(item.lowPerSecond)} to ${exact(item.highPerSecond)}`;
  return `${exact(item.scalePerSecond)} per second (${interval}), by ${number(item.reports)} reports`;
}

function drawTotals(cluster) {
  const capacity = cluster.capacity || {};
  const used = cluster.used || {};
  const of = (name) => `${number(used[name])} of ${number(capacity[name])}`;
  const rows = [
    ["Nodes ready", `${number(cluster.readyNodeCount)} of ${number(cluster.nodeCount)}`],
    ["Telemetry stale", number(cluster.staleNodeCount)],
    ["GPUs used", of("gpus")],
    ["CPU cores used", of("cpuCores")],
    ["Memory used, GiB", of("memoryGib")],
    ["Jobs running", number(cluster.runningJobs)],
    ["Reserved", number(cluster.reservedJobs)],
    ["Version", number(cluster.snapshotVersion)],
  ];
  if (cluster.disturbance) {
    const { loss, pairs } = cluster.disturbance;
    rows.push(["Lost beside another gang", `${number(100 * (loss || 0))} % by ${number(pairs)} pairs of reports`]);
  }
  for (const item of cluster.heat || []) rows.push([`Heat of a ${item.unit}, ${item.nodeType}`, heatOf(item)]);
  for (const item of cluster.capabilities || []) {
    rows.push([`Capability of a ${item.unit}, ${item.nodeType}, for ${item.taskKind || "any kind"}`, capabilityOf(item)]);
  }
  for (const item of cluster.coRuns || []) {
    const speed = `${number(100 * item.relativeSpeed)} % (${number(100 * item.low)} to ${number(100 * item.high)})`;
    const name = `Speed of ${item.model} beside ${item.partner}, ${item.gpuType}`;
    rows.push([name, `${speed}, by ${number(item.reports)} reports`]);
  }
  find("totals").replaceChildren(...rows.map(([name, value]) => {
    const row = element("div");
    row.append(element("dt", name), element("dd", value));
    return row;
  }));
}

function tenants(jobs) {
  const held = new Map();
  for (const job of jobs || []) {
    for (const assignment of job.assignments || []) {
      for (const index of assignment.gpuIndices || []) {
        const key = `${assignment.node}/${index}`;
        held.set(key, [...(held.get(key) || []), job]);
      }
    }
  }
  return held;
}

function gpuSquare(node, index, model, held) {
  const jobs = held.get(`${node.id}/${index}`) || [];
  let state = "free";
  if (jobs.length > 1) state = "shared";
  else if (jobs.length === 1) state = jobs[0].state === "RESERVED" ? "reserved" : "running";
  const who = jobs.map((job) => job.jobId).join(", ") || "free";
  return element("i", "", { class: `gpu ${state}`, title: `${model || "GPU"} ${index}: ${who}` });
}

function drawNodes(cluster) {
  if (Number(cluster.nodeCount || 0) > MOST_NODES_DRAWN) {
    find("nodes").replaceChildren(element("p", `More than ${MOST_NODES_DRAWN} nodes: not drawn one by one.`));
    return;
  }
  const held = tenants(cluster.jobs);
  find("nodes").replaceChildren(...(cluster.nodes || []).map((node) => {
    const isReady = node.state === "READY";
    const card = element("div", "", { class: isReady ? "node" : "node dim" });
    card.append(element("b", node.id));
    for (const gpu of node.gpus || []) card.append(gpuSquare(node, gpu.index || 0, gpu.model, held));
    const telemetry = node.telemetry || {};
    const heat = telemetry.gpuCelsius ?? telemetry.cpuCelsius;
    const notes = [isReady ? "" : node.state.toLowerCase(), heat === undefined ? "" : `${number(heat)} °C`];
    card.append(element("br"), element("small", notes.filter(Boolean).join(", ") || `${number(node.capacity?.cpuCores)} cores`));
    return card;
  }));
}

function row(cells) {
  const made = element("tr");
  made.append(...cells.map((cell) => (cell instanceof Node ? cell : element("td", cell))));
  return made;
}

function drawQueues(cluster) {
  find("queues").replaceChildren(...(cluster.queues || []).map((queue) => row([
    queue.queue || "(default)", number(queue.waitingJobs), number(queue.backlogSeconds), number(queue.delaySeconds),
    number(queue.v), number(queue.epsilonSeconds),
  ])));
}

function answerOf(decision) {
  const blockers = (item) => (item.blockers || []).map((blocker) => blocker.reason).join(", ");
  if (decision.place) {
    return (decision.place.decisions || []).map((item) => {
      const where = [...new Set((item.assignments || []).map((task) => task.node))].join(", ");
      return `${item.jobId}: ${item.outcome} ${where || blockers(item)}`;
    }).join("; ");
  }
  if (decision.partition) return `${decision.partition.outcome}: ${number(decision.partition.units)} units`;
  return ((decision.admitOrWait || {}).admissions || [])
    .map((item) => `${item.jobId}: ${item.verdict} ${item.gpus ? `${item.gpus} GPUs` : blockers(item)}`).join("; ");
}

function learnedOf(meta) {
  const lengths = (meta.lengths || []).map((item) => `; ${item.jobId}: ${number(item.singleGpuSeconds)} s learned`);
  const speeds = (meta.speeds || []).map((item) => {
    const interval = `${number(item.lowPerSecond)} to ${number(item.highPerSecond)}`;
    return `; ${item.jobId}: ${number(item.samplesPerSecond)} samples/s learned (${interval})`;
  });
  const heat = (meta.heat || []).map((item) => `; ${item.nodeType} (${item.unit}): ${heatOf(item)} learned`);
  const capabilities = (meta.capabilities || [])
    .map((item) => `; ${item.nodeType} (${item.unit}): ${capabilityOf(item)} learned`);
  return [...lengths, ...speeds, ...heat, ...capabilities].join("");
}

function drawDecisions(list) {
  find("decisions").replaceChildren(...(list.decisions || []).map((decision) => {
    const meta = (decision.place || decision.partition || decision.admitOrWait).meta;
    return row([
      new Date(decision.decideTime).toLocaleTimeString(), decision.rpc, meta.policy,
      answerOf(decision) + learnedOf(meta),
      Number(meta.decideMs || 0).toFixed(2), element("td", decision.decisionId, { class: "id" }),
    ]);
  }));
}

async function drawClusterNames() {
  const names = (await ask("/v1/clusters")).clusters || [];
  const select = find("cluster");
  const chosen = names.includes(select.value) ? select.value : names[0];
  select.replaceChildren(...names.map((name) => element("option", name)));
  select.value = chosen || "";
  return chosen;
}

async function refresh() {
  const name = await drawClusterNames();
  if (!name) return "no cluster has reported yet";
  const path = `/v1/clusters/${encodeURIComponent(name)}`;
  let cluster = await ask(path);
  if (Number(cluster.nodeCount || 0) <= MOST_NODES_DRAWN) cluster = await ask(`${path}?full=true`);
  const decisions = await ask(`${path}/decisions`);
  drawTotals(cluster);
  drawNodes(cluster);
  drawQueues(cluster);
  drawDecisions(decisions);
  return cluster.stale ? "the state cannot be refreshed; this view is old" : `seen ${new Date().toLocaleTimeString()}`;
}

async function poll() {
  const state = find("state");
  try {
    state.textContent = await refresh();
    state.className = "";
  } catch (error) {
    state.textContent = error.message;
    state.className = "bad";
  }
  setTimeout(poll, PERIOD_MS);
}

find("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", find("token").value);
});
poll();
