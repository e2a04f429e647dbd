package report_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/nodens-dns/nodens/internal/report"
)

// hostile has what a terminal obeys, and what forges rows and columns.
const hostile = "a\x1b[2J\u009b31m\x07\r\nb\tc\u202ed\u2066e\u200bf\x7f"

// TestPrintable: names keep their letters, and lose what a terminal obeys.
func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		hostile:                        "a?[2J?31m???b?c?d?e?f?",
		"Deployment/web (shop) ≤ 3 µs": "Deployment/web (shop) ≤ 3 µs",
	} {
		if got := report.Printable(in); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// fill sets all texts below v to hostile, and gives each list and map an element.
func fill(v reflect.Value, depth int) {
	if depth > 12 || v.Type() == reflect.TypeFor[time.Time]() {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), depth+1)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth+1)
		fill(value, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(hostile)
	}
}

// TestUnmarshal: no reply, whatever its texts are, brings a control character into a table.
func TestUnmarshal(t *testing.T) {
	for _, reply := range []any{
		new(report.Status), new(report.Upstreams), new(report.Plan), new(report.Clients), new(report.Explanation), new(report.TailLine), new(report.Names),
		new(report.Advice), new(report.CacheEntries), new(report.CacheStats), new(report.ClusterStatus), new(report.ClusterClients),
	} {
		fill(reflect.ValueOf(reply).Elem(), 0)
		text, err := json.Marshal(reply)
		if err != nil {
			t.Fatal(err)
		}
		got := reflect.New(reflect.TypeOf(reply).Elem())
		if err := report.Unmarshal(text, got.Interface()); err != nil {
			t.Fatal(err)
		}
		again, _ := json.Marshal(got.Interface())
		if strings.ContainsFunc(string(again), func(r rune) bool { return !unicode.IsPrint(r) }) || strings.Contains(string(again), `\u`) || strings.Contains(string(again), `\n`) {
			t.Errorf("%T: %s", reply, again)
		}
		if !strings.Contains(string(again), report.Printable(hostile)) {
			t.Errorf("%T has lost its texts: %s", reply, again)
		}
	}
	if err := report.Unmarshal([]byte("{"), new(report.Status)); err == nil {
		t.Error("no error")
	}
}
