-- Removes a session, or the state of a scope, or says what that would be.
--
-- KEYS  1 head, 2 order, 3 known, 4 values, 5 recent: see commit.lua
-- ARGV  1 its full name, 2 microseconds since its last write at least, or "", 3 "dry" to remove nothing
-- Answers with nothing if it is not there, with 0 if it was written too lately or is too damaged to say when, with 2 and
-- its layout if a later version has written it, else with 1, its messages and its state keys.

local found = redis.call('HMGET', KEYS[1], 'h', 'k')
local older = tonumber(ARGV[2])
if not found[1] and not found[2] then
  if not older and ARGV[3] ~= 'dry' then -- what is left where the server has evicted the head
    redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4])
  end
  return {}
end
if found[2] and found[2] ~= ARGV[1] then
  return {}
end
local head = found[1] or ''
if head ~= '' and string.sub(head, 1, 1) ~= '1' then
  return { 2, string.sub(head, 1, 1) }
end
if older then
  if #head ~= 49 then
    return { 0 }
  end
  local clock = redis.call('TIME')
  local updated = struct.unpack('>I8', head, 18)
  if updated > clock[1] * 1000000 + clock[2] - older then
    return { 0 }
  end
end
local fields, messages = redis.call('HGETALL', KEYS[1]), 0
for place = 1, #fields, 2 do
  if string.sub(fields[place], 1, 1) == 'L' and #fields[place + 1] == 40 then -- what is damaged is not counted
    messages = messages + struct.unpack('>I8', fields[place + 1], 17)
  end
end
local keys = redis.call('ZLEXCOUNT', KEYS[2], '[k', '(l')
if ARGV[3] ~= 'dry' then
  redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
end
return { 1, messages, keys }
