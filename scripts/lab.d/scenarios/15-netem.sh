# A bad network between ib_iser on rxe and iserd on softroce: losses, repeats, damage, delay, disorder; every byte right, sessions live
# kernel: ib_iser.always_register=N
# By default ib_iser registers the memory of each command by a work request. Up to Linux 6.18 at least, rxe does such requests once
# more when it goes back after a loss, fails at it and says nothing: with any target, the session then ends by the initiator's ping
# timeout. Here small requests go without.
softroce_up
if grep -qsi y /sys/module/ib_iser/parameters/always_register; then
	modprobe -r ib_iser 2>/dev/null && modprobe ib_iser always_register=N 2>/dev/null
	grep -qsi n /sys/module/ib_iser/parameters/always_register || skip "ib_iser here cannot be loaded with always_register=N"
fi
start_softroce --lun ram:64MiB
login iser $IQN $SR_ADDR
disk_of $IQN 0
bad() { # bad WHAT SIZE WORDS...: SIZE of fio with verification over a network with netem's WORDS
	local what=$1 size=$2 began; shift 2
	netem "$@"
	began=$(msec)
	fio_verify "$DISK" --bsrange=4k-4k --size=32m --io_size="$size" || fail "fio with $what: $(fio_why "$DISK")"
	step "$what: $(($(msec) - began)) ms, $(fio_rates "$DISK")"
	! kernel_log | grep -qaE 'ping timeout|detected conn error' || fail "the session was lost with $what"
}
bad "no fault" 16m delay 0
bad "loss 0.1 %" 16m loss 0.1%
bad "loss 1 %" 8m loss 1%
bad "loss 5 %" 1m loss 5%
bad "repeats 10 %" 16m duplicate 10%
bad "damage 1 %" 8m corrupt 1%
bad "delay 5 ms" 16m delay 5ms
bad "jitter" 2m delay 5ms 1ms
bad "disorder 1 %" 8m delay 2ms reorder 99%
bad "disorder 10 %" 8m delay 2ms reorder 90% 50%
netem
logout iser $IQN $SR_ADDR
stop_iserd
