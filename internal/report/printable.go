package report

import (
	"encoding/json"
	"reflect"
	"strings"
	"unicode"
)

// Printable returns text without characters that a terminal would obey or that would make one row look like
// several: control characters, line breaks, tabs, and characters that change the direction of the text or are
// invisible. Each becomes a question mark.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// Unmarshal decodes an agent's reply into reply, and makes all texts in it [Printable]: names in it may be chosen by
// whoever creates objects in the cluster or answers queries.
func Unmarshal(data []byte, reply any) error {
	if err := json.Unmarshal(data, reply); err != nil {
		return err
	}
	makePrintable(reflect.ValueOf(reply))
	return nil
}

// makePrintable makes all texts below v printable, keys of maps included. What v can't change, it leaves alone.
func makePrintable(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			makePrintable(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			makePrintable(v.Field(i))
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			makePrintable(v.Index(i))
		}
	case reflect.Map:
		makeMapPrintable(v)
	case reflect.String:
		if v.CanSet() {
			v.SetString(Printable(v.String()))
		}
	}
}

// makeMapPrintable replaces the entries of m.
func makeMapPrintable(m reflect.Value) {
	for _, key := range m.MapKeys() {
		newKey, value := reflect.New(key.Type()).Elem(), reflect.New(m.Type().Elem()).Elem()
		newKey.Set(key)
		value.Set(m.MapIndex(key))
		makePrintable(newKey)
		makePrintable(value)
		m.SetMapIndex(key, reflect.Value{})
		m.SetMapIndex(newKey, value)
	}
}
