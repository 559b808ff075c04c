-- report_jobs.lua: applies reports of hosts about jobs, in order. Includes: clock, event, rows, holdings, fits, lapsed.
-- KEYS    1 meta, 2 events, 3 used, 4 jobs, 5 holds, 6 expiring, 7 reservations, 8 lapsed, 9 lapsed_times,
--         10 progress, 11 ended, 12 capacities, 13 row_sums
-- ARGV    1 retain_s, 2 seconds to remember an end, then per report: op, job id, reservation id, record, holds,
--         start time, speed, epochs done; op = "start" (record "" = as
--         reserved, even if expired), "progress", "end", or "none"
-- Returns {epoch, version, applied, ignored, events, problems, unknown}, events being {version, kind, body, args}: one
--         per run of changes of the same kind; problems {job, node, reason, {gpus}, {other jobs on them}}; unknown the
--         jobs that started without a placement and whose decision is not known; or false if the cluster does not exist
-- Cost    O(tasks of the jobs reported)
if not exists then
  return false
end
used_key, capacities_key, row_sums_key = KEYS[3], KEYS[12], KEYS[13]
lapsed_key, lapsed_times_key = KEYS[8], KEYS[9]
local events, problems, unknown, applied, ignored = {}, {}, {}, 0, 0
local run_kind, ended, records, lives = nil, {}, {}, {}

local function flush()
  if run_kind == 'jobs' then
    events[#events + 1] = append('jobs', array_header(#records) .. table.concat(records), cmsgpack.pack(lives))
  elseif run_kind == 'ended' then
    events[#events + 1] = append('ended', cmsgpack.pack(ended), '')
  end
  ended, records, lives = {}, {}, {}
end

local function begin(kind)
  if run_kind ~= kind then
    flush()
    run_kind = kind
  end
  applied = applied + 1
end

local function changed(job, record, progress)
  begin('jobs')
  records[#records + 1] = record
  lives[#lives + 1] = {0, progress[1], progress[2], progress[3]}
  save_row(KEYS[10], 'progress', job, progress)
end

-- A running job is no reservation any more.
local function confirm(job, reservation)
  if redis.call('ZREM', KEYS[6], job) == 1 then
    leave_reservation(KEYS[7], reservation, job)
    return true
  end
  return false
end

-- The host is right: a job that does not fit is reported as a problem, not refused.
local function note_problems(job, hold)
  local capacity = capacity_of(hold[1])
  if not capacity then
    return
  end
  local record = used_on(hold[1])
  local pooled = pooled_conflict(hold, capacity, record)
  if pooled then
    problems[#problems + 1] = {job, hold[1], pooled, {}, {}}
  end
  local reason, gpus, others, seen = nil, {}, {}, {[job] = true}
  for _, gpu in ipairs(hold[7]) do
    local why = gpu_conflict(hold, gpu, capacity, record[6])
    for i = 1, why and #record[6] or 0, 5 do
      local other = record[6][i + 1]
      if record[6][i] == gpu and other ~= job then
        reason = reason or why
        if gpus[#gpus] ~= gpu then
          gpus[#gpus + 1] = gpu
        end
        if not seen[other] then
          seen[other] = true
          others[#others + 1] = other
        end
      end
    end
  end
  if reason then
    problems[#problems + 1] = {job, hold[1], reason, gpus, others}
  end
end

local function start(job, held, reservation, record, holds, progress)
  if record == '' and not held then
    local was = take_lapsed(job)
    if not was then
      return false
    end
    reservation, record, holds = was[2], was[3], was[4]
  end
  local was_reserved = held and confirm(job, held[1])
  if record == '' or (held and held[2] == holds) then
    if not was_reserved then
      return false
    end
  else
    if held then
      give_back_all(held[2], job)
    end
    drop_lapsed(job)
    for _, hold in ipairs(cmsgpack.unpack(holds)) do
      note_problems(job, hold)
      take(hold, job)
    end
    redis.call('HSET', KEYS[5], job, cmsgpack.pack({reservation, holds}))
  end
  if record ~= '' then
    redis.call('HSET', KEYS[4], job, record)
  end
  changed(job, redis.call('HGET', KEYS[4], job), progress)
  return true
end

local function progressed(job, held, progress)
  if not held then
    return start(job, nil, '', '', '', progress)
  end
  local old = row_of(KEYS[10], 'progress', job) or {0, 0, 0}
  local was_reserved = confirm(job, held[1])
  if not was_reserved and old[2] == progress[2] and old[3] == progress[3] then
    return false
  end
  if not was_reserved then
    progress[1] = old[1]
  end
  changed(job, redis.call('HGET', KEYS[4], job), progress)
  return true
end

local function finish(job, held)
  if held then
    give_back_all(held[2], job)
    confirm(job, held[1])
    redis.call('HDEL', KEYS[4], job)
    redis.call('HDEL', KEYS[5], job)
    drop_row(KEYS[10], 'progress', job)
  end
  drop_lapsed(job)
  redis.call('ZADD', KEYS[11], string.format('%.6f', now_s + tonumber(ARGV[2])), job)
  begin('ended')
  ended[#ended + 1] = job
  return true
end

redis.call('ZREMRANGEBYSCORE', KEYS[11], '-inf', string.format('%.6f', now_s))
for i = 3, #ARGV, 8 do
  local op, job, reservation = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local packed = redis.call('HGET', KEYS[5], job)
  local held = packed and cmsgpack.unpack(packed)
  local progress = {tonumber(ARGV[i + 5]), tonumber(ARGV[i + 6]), tonumber(ARGV[i + 7])}
  local is_done = false
  if redis.call('ZSCORE', KEYS[11], job) then
    is_done = false
  elseif op == 'start' then
    is_done = start(job, held, reservation, ARGV[i + 3], ARGV[i + 4], progress)
    if not is_done and not held then
      unknown[#unknown + 1] = job
    end
  elseif op == 'progress' then
    is_done = progressed(job, held, progress)
  elseif op == 'end' and (reservation == '' or not held or held[1] == '' or held[1] == reservation) then
    is_done = finish(job, held)
  end
  if not is_done then
    ignored = ignored + 1
  end
end
flush()
save_used()
redis.call('EXPIRE', KEYS[11], math.ceil(tonumber(ARGV[2])) + 1)
return {epoch, whole(version), applied, ignored, events, problems, unknown}
