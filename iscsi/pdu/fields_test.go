package pdu

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"iserd/internal/serial"
)

// kinds is every PDU kind over the same header.
func kinds(b *BHS) []any {
	return []any{b.NOPOut(), b.SCSICommand(), b.TaskManagementRequest(), b.LoginRequest(), b.TextRequest(), b.DataOut(), b.LogoutRequest(),
		b.SNACK(), b.NOPIn(), b.SCSIResponse(), b.TaskManagementResponse(), b.LoginResponse(), b.TextResponse(), b.DataIn(),
		b.LogoutResponse(), b.R2T(), b.AsyncMessage(), b.Reject(), b}
}

// width is how many bits of a field's type the wire has, where that is less than all.
var width = map[string]uint{"Attr": 3, "Function": 7, "CSG": 2, "NSG": 2, "LogoutRequest.Reason": 7, "Type": 4, "Opcode": 6,
	"DataSegmentLength": 24}

func randomValue(r *rand.Rand, kind, field string, t reflect.Type) reflect.Value {
	if t == reflect.TypeFor[serial.Number]() {
		return reflect.ValueOf(serial.New(r.Uint32()))
	}
	v := reflect.New(t).Elem()
	switch t.Kind() {
	case reflect.Bool:
		v.SetBool(r.Uint32()&1 == 1)
	case reflect.Array:
		for i := range t.Len() {
			v.Index(i).SetUint(uint64(r.Uint32() & 0xff))
		}
	default:
		bits := uint(t.Bits())
		for _, k := range []string{field, kind + "." + field} {
			if w, ok := width[k]; ok {
				bits = w
			}
		}
		n := r.Uint64() >> (64 - bits)
		if field == "TotalAHSLength" {
			n = n & 0xff * 4
		}
		if v.CanInt() {
			v.SetInt(int64(n))
		} else {
			v.SetUint(n)
		}
	}
	return v
}

// TestFields sets every field of every PDU to random values, in random order, and reads all of them back: a setter that
// reaches into a neighbour, or a getter at the wrong place, shows.
func TestFields(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var b BHS
	total := 0
	for _, k := range kinds(&b) {
		v := reflect.ValueOf(k)
		kind := v.Type().Elem().Name()
		var fields []string
		for i := range v.NumMethod() {
			name := v.Type().Method(i).Name
			setter := v.Method(i).Type()
			if !strings.HasPrefix(name, "Set") || setter.NumIn() != 1 {
				continue
			}
			field := strings.TrimPrefix(name, "Set")
			getter := v.MethodByName(field)
			if !getter.IsValid() || getter.Type().NumOut() != 1 || getter.Type().Out(0) != setter.In(0) {
				t.Errorf("%s.%s has no getter of its type", kind, name)
				continue
			}
			fields = append(fields, field)
		}
		total += len(fields)
		for range 200 {
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			want := map[string]any{}
			r.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
			for _, f := range fields {
				set := v.MethodByName("Set" + f)
				x := randomValue(r, kind, f, set.Type().In(0))
				set.Call([]reflect.Value{x})
				want[f] = x.Interface()
			}
			for _, f := range fields {
				if got := v.MethodByName(f).Call(nil)[0].Interface(); got != want[f] {
					t.Fatalf("%s.%s is %v, want %v", kind, f, got, want[f])
				}
			}
		}
	}
	if total < 120 {
		t.Fatalf("only %d fields were found", total)
	}
}

func TestResidual(t *testing.T) {
	var b BHS
	for _, k := range []ResidualKind{ResidualUnderflow, ResidualOverflow, ResidualNone} {
		b.SCSIResponse().SetResidual(k, 9)
		b.SCSIResponse().SetBidiReadResidual(k, 8)
		n9, n8 := uint32(9), uint32(8)
		if k == ResidualNone {
			n9, n8 = 0, 0
		}
		if got, n := b.SCSIResponse().Residual(); got != k || n != n9 {
			t.Errorf("%v: %v %d", k, got, n)
		}
		if got, n := b.SCSIResponse().BidiReadResidual(); got != k || n != n8 {
			t.Errorf("%v bidi: %v %d", k, got, n)
		}
		b.DataIn().SetResidual(k, 9)
		if got, n := b.DataIn().Residual(); got != k || n != n9 {
			t.Errorf("%v data-in: %v %d", k, got, n)
		}
	}
}

func TestStrings(t *testing.T) {
	for o := range Opcode(64) {
		if named := !strings.HasPrefix(o.String(), "opcode"); named != (o.FromInitiator() || o >= OpNOPIn && o <= OpLogoutResponse || o == OpR2T || o == OpAsyncMessage || o == OpReject) {
			t.Errorf("opcode %#x is %q", uint8(o), o)
		}
	}
	for got, want := range map[string]string{
		AttrACA.String(): "ACA", TaskAttribute(7).String(): "attribute 7", TMClearACA.String(): "CLEAR ACA", TMClearTaskSet.String(): "CLEAR TASK SET",
		TMFunction(9).String(): "function 9", TMFunctionRejected.String(): "function rejected", RejectReason(0x40).String(): "reason 64",
		RejectInvalidPDUField.String(): "invalid PDU field", StageFullFeature.String(): "full feature phase", Stage(2).String(): "stage 2",
		LogoutCleanupFailed.String(): "cleanup failed", AsyncVendor.String(): "vendor event", SNACKRData.String(): "R-Data",
		ResponseTargetFailure.String(): "target failure", LogoutCloseSession.String(): "close session", AHSExtendedCDB.String(): "extended CDB",
		ResidualOverflow.String(): "overflow",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestPad4(t *testing.T) {
	for n, want := range []int{0, 4, 4, 4, 4, 8} {
		if Pad4(n) != want {
			t.Errorf("Pad4(%d) = %d", n, Pad4(n))
		}
	}
}

// The values are those of RFC 3720's appendix on CRC examples: the digest as the bytes on the wire.
func TestDigest(t *testing.T) {
	up, down := make([]byte, 32), make([]byte, 32)
	for i := range up {
		up[i], down[i] = byte(i), byte(31-i)
	}
	ones := []byte(strings.Repeat("\xff", 32))
	for _, tt := range []struct {
		data []byte
		wire [4]byte
	}{
		{make([]byte, 32), [4]byte{0xaa, 0x36, 0x91, 0x8a}},
		{ones, [4]byte{0x43, 0xab, 0xa8, 0x62}},
		{up, [4]byte{0x4e, 0x79, 0xdd, 0x46}},
		{down, [4]byte{0x5c, 0xdb, 0x3f, 0x11}},
	} {
		var got [4]byte
		PutDigest(got[:], Digest(tt.data[:5], nil, tt.data[5:]))
		if got != tt.wire {
			t.Errorf("% x gives % x, want % x", tt.data, got, tt.wire)
		}
		if GetDigest(got[:]) != UpdateDigest(0, tt.data) {
			t.Error("GetDigest does not read what PutDigest wrote")
		}
	}
}
