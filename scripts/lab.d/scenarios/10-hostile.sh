# random bytes, a port scan, a TLS hello, half a login: refused quietly, other sessions unharmed
start_iserd --lun ram:96MiB
login iser $IQN; disk_of $IQN 0
fio_verify "$DISK" --time_based --runtime=15 & p=$!
sleep 1
lines=$(wc -l <"$OUT/iserd.log")
send() { timeout 5 bash -c "exec 3<>/dev/tcp/$ADDR/$PORT; cat >&3; cat <&3 >/dev/null" 2>/dev/null; }
step "48 random bytes, five times"
for i in 1 2 3 4 5; do head -c 48 /dev/urandom | send; done
step "connect and close"
for i in $(seq 20); do timeout 2 bash -c "exec 3<>/dev/tcp/$ADDR/$PORT" 2>/dev/null; done
step "a TLS hello, an HTTP request"
printf '\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03%0160d' 0 | send
printf 'GET / HTTP/1.1\r\nHost: x\r\n\r\n%060d' 0 | send
step "half a login"
printf '\x43\x87\x00\x00\x00\x00\x00\x40%04d' 0 | send
wait $p || fail "fio saw an error"
new=$(( $(wc -l <"$OUT/iserd.log") - lines ))
[ $new -le 30 ] || fail "$new log lines for that"
tail -n $new "$OUT/iserd.log" | grep -qE 'ERROR|panic|goroutine ' && fail "an error in the log: $(tail -n $new "$OUT/iserd.log" | grep -m1 -E 'ERROR|panic')"
note "$new log lines"
logout iser $IQN
