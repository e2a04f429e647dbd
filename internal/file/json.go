package file

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// JSONValues returns the JSON values of text, which may follow each other, as in what kubectl reads; nil if text is not JSON. The value
// of a text with one is text itself.
func JSONValues(text []byte) (values []json.RawMessage) {
	if json.Valid(text) { // without a copy
		return []json.RawMessage{text}
	}
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var value json.RawMessage
		switch err := d.Decode(&value); {
		case errors.Is(err, io.EOF):
			return values
		case err != nil:
			return nil
		}
		values = append(values, value)
	}
}
