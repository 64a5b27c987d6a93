package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"iserd/internal/initiator"
)

// Operation codes and lengths of what is asked before a load.
const (
	opTestUnitReady  = 0x00
	opInquiry        = 0x12
	opServiceIn16    = 0x9e
	actReadCapacity  = 0x10
	inquiryLength    = 96
	serialPage       = 0x80
	capacityLength   = 32
	statusCheck      = 0x02
	keyUnitAttention = 0x6
	// attentions is how many unit attentions in a row are taken for news of a new session, and not for a fault.
	attentions = 8
)

// askTime bounds one question.
const askTime = 10 * time.Second

// ask does one command that reads up to n bytes, past unit attentions.
func ask(s initiator.Session, lun, n int, cdb ...byte) ([]byte, error) {
	t, err := s.Take(n, 0)
	if err != nil {
		return nil, err
	}
	for range attentions {
		t.LUN, t.CDB = initiator.LUN(lun), [16]byte{}
		copy(t.CDB[:], cdb)
		if err := initiator.Do(s, t, askTime); err != nil {
			return nil, err
		}
		if key, _ := t.SenseKey(); t.Status == statusCheck && key == keyUnitAttention {
			continue
		}
		break
	}
	if t.Status != 0 || t.Response != 0 || t.Overflow {
		return nil, errors.Join(errors.New(outcome(t)), s.Release(t))
	}
	data := append([]byte(nil), t.Data...)
	return data, s.Release(t)
}

// identify clears the unit attentions of a new session and asks a logical unit what it is.
func identify(s initiator.Session, lun int) (Disk, error) {
	var d Disk
	fail := func(what string, err error) (Disk, error) { return d, fmt.Errorf("LUN %d: %s: %w", lun, what, err) }
	b, err := ask(s, lun, inquiryLength, opInquiry, 0, 0, 0, inquiryLength)
	if err != nil {
		return fail("INQUIRY", err)
	}
	switch {
	case len(b) < 36:
		return fail("INQUIRY", fmt.Errorf("%d bytes, want 36", len(b)))
	case b[0]>>5 == 3: // SPC-4 table 141: no peripheral device can be here
		return d, fmt.Errorf("LUN %d: the target has no such logical unit", lun)
	case b[0]&0x1f != 0:
		return d, fmt.Errorf("LUN %d is no disk (peripheral device type %#x)", lun, b[0]&0x1f)
	}
	d.Vendor, d.Product, d.Revision = text(b[8:16]), text(b[16:32]), text(b[32:36])
	if _, err := ask(s, lun, 0, opTestUnitReady); err != nil {
		return fail("TEST UNIT READY", err)
	}
	if b, err = ask(s, lun, 255, opInquiry, 1, serialPage, 0, 255); err == nil && len(b) >= 4 {
		d.Serial = text(b[4:min(len(b), 4+int(b[3]))])
	}
	b, err = ask(s, lun, capacityLength, opServiceIn16, actReadCapacity, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, capacityLength)
	if err != nil {
		return fail("READ CAPACITY(16)", err)
	}
	if len(b) < 12 {
		return fail("READ CAPACITY(16)", fmt.Errorf("%d bytes, want 12", len(b)))
	}
	d.Blocks, d.BlockSize = binary.BigEndian.Uint64(b)+1, binary.BigEndian.Uint32(b[8:])
	if d.Blocks == 0 || d.BlockSize == 0 {
		return fail("READ CAPACITY(16)", errors.New("the capacity makes no sense"))
	}
	return d, nil
}

func text(b []byte) string { return strings.TrimRight(string(b), " \x00") }
