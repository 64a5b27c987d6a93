package faultstore

import (
	"errors"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/backstore/ram"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	inner, err := ram.New(4096)
	if err != nil {
		t.Fatal(err)
	}
	return New(inner)
}

func request(op backstore.Op, done chan error) *backstore.Request {
	r := &backstore.Request{Op: op, Length: 512, Buffers: [][]byte{make([]byte, 512)}}
	r.Done = func(r *backstore.Request) { done <- r.Err }
	return r
}

func TestFailCounts(t *testing.T) {
	s := newStore(t)
	defer s.Close()
	s.Fail(backstore.OpRead, 2, backstore.ErrIO)
	done := make(chan error, 1)
	for i, want := range []error{backstore.ErrIO, backstore.ErrIO, nil} {
		r := request(backstore.OpRead, done)
		if !s.Submit(r) || !errors.Is(r.Err, want) {
			t.Errorf("read %d: %v, want %v", i, r.Err, want)
		}
	}
	if s.Seen(backstore.OpRead) != 3 || s.Seen(backstore.OpWrite) != 0 {
		t.Error("wrong counts")
	}
}

func TestHangAndRelease(t *testing.T) {
	s := newStore(t)
	s.Hang(backstore.OpWrite)
	done := make(chan error, 2)
	canceled, kept := request(backstore.OpWrite, done), request(backstore.OpWrite, done)
	if s.Submit(canceled) || s.Submit(kept) {
		t.Fatal("finished although it hangs")
	}
	canceled.Cancel.Store(true)
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	select {
	case <-closed:
		t.Fatal("closed with held requests")
	case <-time.After(20 * time.Millisecond):
	}
	if s.Held() != 2 {
		t.Fatalf("%d held", s.Held())
	}
	s.Release()
	<-done
	<-done
	if !errors.Is(canceled.Err, backstore.ErrCanceled) || kept.Err != nil {
		t.Errorf("%v, %v", canceled.Err, kept.Err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if late := request(backstore.OpRead, done); !s.Submit(late) || !errors.Is(late.Err, backstore.ErrClosed) {
		t.Errorf("after Close: %v", late.Err)
	}
}

func TestSpaceAndDelay(t *testing.T) {
	s := newStore(t)
	defer s.Close()
	s.LimitSpace(512)
	done := make(chan error, 1)
	r := request(backstore.OpWrite, done)
	if !s.Submit(r) || r.Err != nil {
		t.Error(r.Err)
	}
	r.Offset = 1
	if !s.Submit(r) || !errors.Is(r.Err, backstore.ErrNoSpace) {
		t.Error(r.Err)
	}
	s.Delay(backstore.OpRead, 5*time.Millisecond)
	start := time.Now()
	if s.Submit(request(backstore.OpRead, done)) || <-done != nil || time.Since(start) < 5*time.Millisecond {
		t.Error("not delayed")
	}
}
