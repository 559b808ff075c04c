-- add_sums.lua: adds reports of a site to decayed sums, as speed/learned/sums.py does.
-- Includes: clock, event, rows, outcomes.
-- A row: count, sum, squares as of time_s, the cluster's time.
-- KEYS    1 meta, 2 events, 3 profiles, 4 profile_times, 5 row_sums, 6 outcomes
-- ARGV    1 retain_s, 2 seconds after which a report counts half, 3 seconds an outcome id is remembered, then kind, value,
--         weight and outcome id of each addition, "" for one that counts in any case
-- Returns {epoch, {version, kind, body, args} of each addition that counts} | false if the cluster does not exist
-- Cost    O(additions · log outcomes)
if not exists then
  return false
end
row_sums_key = KEYS[5]
local halving_s = tonumber(ARGV[2])
local events = {}
for i = 4, #ARGV, 4 do
  if ARGV[i + 3] == '' or is_first(KEYS[6], ARGV[i + 3], tonumber(ARGV[3])) then
    local kind, value, weight = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
    local row = row_of(KEYS[3], 'profiles', kind) or {count = 0, sum = 0, squares = 0, time_s = clock_s}
    local kept = 0.5 ^ (math.max(0, clock_s - row.time_s) / halving_s)
    row.count = row.count * kept + weight
    row.sum = row.sum * kept + weight * value
    row.squares = row.squares * kept + weight * value * value
    row.time_s = math.max(row.time_s, clock_s)
    save_row(KEYS[3], 'profiles', kind, row, true)
    redis.call('ZADD', KEYS[4], now_s, kind)
    events[#events + 1] = append('profile', cmsgpack.pack(row), kind)
  end
end
return {epoch, events}
