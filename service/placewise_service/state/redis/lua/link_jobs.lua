-- link_jobs.lua: remembers which decisions of the log asked about which jobs. No event: the log is no part of the view.
-- KEYS    1 meta, 2 links, 3 older_links
-- ARGV    1 most jobs of `links` before they become the older ones, 2 seconds until idle links are forgotten, then per
--         question: "admit", "wait" or "place", job, decision id, digest of a refusal ("" if it is none)
-- Returns for each in turn: the decision that admitted the job, the first Place that asked about it, the first decision
--         of an unchanged refusal, the first AdmitOrWait that asked about it before; "" for none
-- Cost    O(questions)
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {}
end
local found = {}
for i = 3, #ARGV, 4 do
  local kind, job, decision, refusal = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local kept = redis.call('HGET', KEYS[2], job) or redis.call('HGET', KEYS[3], job)
  local links = kept and cmsgpack.unpack(kept) or {'', ''}
  local refused, first = '', links[5] or ''
  if kind == 'wait' then
    links[1] = ''
    if refusal ~= '' and links[4] == refusal then
      refused = links[3]
    else
      links[3], links[4] = decision, refusal
    end
  elseif kind == 'admit' and links[1] == '' then
    links[1] = decision
  end
  found[#found + 1] = links[1]
  found[#found + 1] = links[2]
  found[#found + 1] = refused
  found[#found + 1] = first
  if kind == 'place' and (links[2] == '' or decision < links[2]) then
    links[2] = decision
  elseif kind ~= 'place' and (first == '' or decision < first) then
    links[5] = decision
  end
  if kind ~= 'wait' then
    links[3], links[4] = nil, nil
  end
  redis.call('HSET', KEYS[2], job, cmsgpack.pack(links))
end
if redis.call('HLEN', KEYS[2]) > tonumber(ARGV[1]) then
  redis.call('RENAME', KEYS[2], KEYS[3])
end
redis.call('EXPIRE', KEYS[2], ARGV[2])
redis.call('EXPIRE', KEYS[3], ARGV[2])
return found
