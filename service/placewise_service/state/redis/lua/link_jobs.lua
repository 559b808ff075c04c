-- link_jobs.lua: remembers which decisions of the log asked about which jobs. No event: the log is no part of the view.
-- KEYS    1 meta, 2 links, 3 older_links
-- ARGV    1 most jobs of `links` before they become the older ones, 2 seconds until idle links are forgotten, then per
--         question: "admit", "wait" or "place", job, decision id
-- Returns for each "place" in turn: the decision that admitted the job, the first Place that asked about it; "" for none
-- Cost    O(questions)
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {}
end
local found = {}
for i = 3, #ARGV, 3 do
  local kind, job, decision = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local kept = redis.call('HGET', KEYS[2], job) or redis.call('HGET', KEYS[3], job)
  local links = kept and cmsgpack.unpack(kept) or {'', ''}
  if kind == 'wait' then
    links[1] = ''
  elseif kind == 'admit' and links[1] == '' then
    links[1] = decision
  elseif kind == 'place' then
    found[#found + 1] = links[1]
    found[#found + 1] = links[2]
    if links[2] == '' or decision < links[2] then
      links[2] = decision
    end
  end
  if kept or kind ~= 'wait' then
    redis.call('HSET', KEYS[2], job, cmsgpack.pack(links))
  end
end
if redis.call('HLEN', KEYS[2]) > tonumber(ARGV[1]) then
  redis.call('RENAME', KEYS[2], KEYS[3])
end
redis.call('EXPIRE', KEYS[2], ARGV[2])
redis.call('EXPIRE', KEYS[3], ARGV[2])
return found
