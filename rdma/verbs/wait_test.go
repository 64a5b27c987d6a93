//go:build linux && cgo && !nordma

package verbs_test

import (
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"net/netip"

	"iserd/rdma"
)

func itoa(n int) string { return strconv.Itoa(n) }

func addrPort(tb testing.TB, port uint16) netip.AddrPort {
	tb.Helper()
	return netip.AddrPortFrom(labAddr(tb), port)
}

func device(tb testing.TB, p rdma.Provider) rdma.Device {
	tb.Helper()
	devs, err := p.Devices()
	must(tb, err)
	return devs[0]
}

func TestWaitTimesOut(t *testing.T) {
	ch, err := device(t, newProvider(t)).NewCompletionChannel()
	must(t, err)
	for _, d := range []time.Duration{0, time.Millisecond, 50 * time.Millisecond} {
		start := time.Now()
		n, err := ch.Wait(d)
		if took := time.Since(start); n != 0 || err != nil || took < d || took > d+2*time.Second {
			t.Fatalf("Wait(%v) = %d, %v after %v", d, n, err, took)
		}
	}
	must(t, ch.Close())
	must(t, ch.Close())
	if _, err := ch.Wait(0); !errors.Is(err, rdma.ErrClosed) {
		t.Fatalf("Wait after Close: %v", err)
	}
	if _, err := ch.CreateCQ(8, 0); !errors.Is(err, rdma.ErrClosed) {
		t.Fatalf("CreateCQ after Close: %v", err)
	}
	ch.Wake() // must not fault
}

func TestWakeBeforeWait(t *testing.T) {
	ch, err := device(t, newProvider(t)).NewCompletionChannel()
	must(t, err)
	defer ch.Close()
	ch.Wake()
	ch.Wake() // merges
	start := time.Now()
	if n, err := ch.Wait(-1); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := ch.Wait(30 * time.Millisecond); n != 0 || err != nil || time.Since(start) < 30*time.Millisecond {
		t.Fatalf("the second Wait must sleep: %d, %v, %v", n, err, time.Since(start))
	}
}

// Each round trip needs its Wake: a lost one hangs the test.
func TestNoWakeIsLost(t *testing.T) {
	ch, err := device(t, newProvider(t)).NewCompletionChannel()
	must(t, err)
	defer ch.Close()
	const rounds = 20000
	token := make(chan struct{}, 1)
	done := make(chan error, 1)
	go func() {
		for range rounds {
			for {
				if _, err := ch.Wait(-1); err != nil {
					done <- err
					return
				}
				select {
				case <-token:
				default:
					continue
				}
				break
			}
		}
		done <- nil
	}()
	for range rounds {
		token <- struct{}{}
		ch.Wake()
	}
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(60 * time.Second):
		t.Fatal("a wake-up was lost")
	}
}

func TestCloseWakesWaiter(t *testing.T) {
	ch, err := device(t, newProvider(t)).NewCompletionChannel()
	must(t, err)
	done := make(chan error)
	go func() {
		_, err := ch.Wait(-1)
		done <- err
	}()
	time.Sleep(20 * time.Millisecond)
	must(t, ch.Close())
	if err := <-done; !errors.Is(err, rdma.ErrClosed) {
		t.Fatal(err)
	}
}

// Events are acknowledged when Wait returns, so a queue can be closed with an event that was never asked for.
func TestEventsWakeAndAreAcknowledged(t *testing.T) {
	p := newProvider(t)
	tgt, ini := connect(t, p, func(s *side) { s.post(recvs(s, 8), nil) })
	must(t, tgt.cq.Arm())
	var wg sync.WaitGroup
	wg.Go(func() {
		time.Sleep(20 * time.Millisecond)
		ini.post(nil, sends(ini, 1, 0))
	})
	n, err := tgt.chan_.Wait(10 * time.Second)
	if n != 1 || err != nil {
		t.Fatal(n, err)
	}
	wg.Wait()
	tgt.reapOK(1)
	if n, err := tgt.chan_.Wait(20 * time.Millisecond); n != 0 || err != nil {
		t.Fatalf("armed once, %d more events, %v", n, err)
	}
	must(t, tgt.cq.Arm())
	ini.post(nil, sends(ini, 1, rdma.SendSignaled))
	ini.reapOK(1)
	tgt.reapOK(1) // by polling: the event stays in the channel
	must(t, tgt.cq.Arm())
	tgt.close()
	ini.close()
}

func TestArmPollWaitUnderLoad(t *testing.T) {
	p := newProvider(t)
	tgt, ini := connect(t, p, func(s *side) { s.post(recvs(s, 64), nil) })
	if iWARP(tgt.dev) {
		tgt.close()
		ini.close()
		t.Skip("iWARP has no RNR: the sender outruns the receives")
	}
	const total = 3000
	var wg sync.WaitGroup
	wg.Go(func() {
		for sent := 0; sent < total; sent += 10 {
			ini.post(nil, append(sends(ini, 9, 0), sends(ini, 1, rdma.SendSignaled)...))
			ini.reapOK(1)
		}
	})
	for got := 0; got < total; {
		n := len(tgt.reapOK(1))
		got += n
		tgt.post(recvs(tgt, n), nil)
	}
	wg.Wait()
	tgt.close()
	ini.close()
}
