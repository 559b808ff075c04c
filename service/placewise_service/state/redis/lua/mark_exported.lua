-- mark_exported.lua: moves the exported position of the decision log forward, never back.
-- KEYS    1 meta, 2 exported
-- ARGV    1 position: ms-seq
-- Returns nothing
-- Cost    O(1)
if redis.call('EXISTS', KEYS[1]) == 0 then
  return nil
end

local function parts(id)
  local ms, seq = string.match(id, '^(%d+)%-?(%d*)$')
  return tonumber(ms), tonumber(seq ~= '' and seq or '0')
end

local new_ms, new_seq = parts(ARGV[1])
local old_ms, old_seq = parts(redis.call('GET', KEYS[2]) or '0')
if new_ms > old_ms or (new_ms == old_ms and new_seq > old_seq) then
  redis.call('SET', KEYS[2], ARGV[1])
end
return nil
