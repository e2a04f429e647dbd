// Internal: tests the decoder.

package reflector

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"testing/iotest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// protobufField returns a length-delimited field. Its number is less than 16.
func protobufField(number byte, value string) string {
	return string(binary.AppendUvarint([]byte{number<<3 | wireDelimited}, uint64(len(value)))) + value
}

// TestDecodePageMalformed: a page that can't be read is an error; an object in it that can't be
// is skipped.
func TestDecodePageMalformed(t *testing.T) {
	page := func(list string) string {
		return protobufMagic + protobufField(1, protobufField(1, "v1")+protobufField(2, "ServiceList")) + protobufField(2, list)
	}
	metadata := protobufField(1, protobufField(2, "12")+protobufField(3, "next"))
	service, err := (&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web"}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	item := protobufField(2, string(service))
	for _, tt := range []struct {
		name, body string
		fails      bool
		objects    int
		skipped    int
	}{
		{"protobuf", page(metadata + item), false, 1, 0},
		{"numbers of all widths", page("\x18\x96\x01" + "\x21\x01\x02\x03\x04\x05\x06\x07\x08" + "\x2d\x01\x02\x03\x04" + metadata + item), false, 1, 0},
		{"an object that can't be read", page(metadata + protobufField(2, "\x0a\x7f") + item), false, 1, 1},
		{"a number cut off", page(metadata + "\x18\x96"), true, 0, 0},
		{"eight bytes cut off", page(metadata + "\x21\x01"), true, 0, 0},
		{"four bytes cut off", page(metadata + "\x2d\x01"), true, 0, 0},
		{"a group", page(metadata + "\x1b"), true, 0, 0},
		{"a field without a number", page(metadata + "\x02\x00"), true, 0, 0},
		{"metadata cut off", page("\x0a\x7f"), true, 0, 0},
		{"malformed metadata", page(protobufField(1, "\x12\x7f")), true, 0, 0},
		{"an envelope cut off", protobufMagic + "\x0a\x7f", true, 0, 0},
		{"an object beyond the limit", page(metadata + protobufField(2, strings.Repeat("x", maxEventBytes+1)) + item), false, 1, 1},
		{"an object longer than the list", page(metadata + "\x12\x7f"), true, 0, 0},
		{"a length beyond any", page(metadata + "\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), true, 0, 0},
		{"JSON", `{"metadata": {"resourceVersion": "12", "continue": "next"}, "items": [{"metadata": {"name": "web"}}]}`, false, 1, 0},
		{"JSON, an object that can't be read", `{"metadata": {"resourceVersion": "12", "continue": "next"}, "items": [{"metadata": 7}, {"metadata": {"name": "web"}}]}`, false, 1, 1},
		{"JSON cut off", `{"metadata": {`, true, 0, 0},
		{"no list", "service unavailable", true, 0, 0},
	} {
		d := &decoder{newObject: func() runtime.Object { return new(corev1.Service) }}
		objects, skipped := 0, 0
		p, err := d.decodePage(strings.NewReader(tt.body), func(runtime.Object) { objects++ }, func(error) { skipped++ })
		if (err != nil) != tt.fails {
			t.Errorf("%s: error %v", tt.name, err)
			continue
		}
		if err == nil && (p != listPage{"12", "next"} || objects != tt.objects || skipped != tt.skipped) {
			t.Errorf("%s: %+v with %d objects and %d skipped, want %d and %d", tt.name, p, objects, skipped, tt.objects, tt.skipped)
		}
	}
}

// TestDecodePageEnds: an error while a page is read, and a page beyond the limit, are errors.
func TestDecodePageEnds(t *testing.T) {
	d := new(decoder)
	broken := errors.New("connection reset")
	if _, err := d.decodePage(iotest.ErrReader(broken), nil, nil); !errors.Is(err, broken) {
		t.Errorf("a broken connection: %v", err)
	}
}
