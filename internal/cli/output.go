package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/pflag"
)

// Output is how a command prints its result: the value of -o, --output.
type Output struct{ json bool }

// AddOutput adds the flag -o, --output to flags.
func AddOutput(flags *pflag.FlagSet) *Output {
	o := new(Output)
	v := &value{text: "text", values: []string{"text", "json"}}
	v.set = enumSet(v.values, func(text string) { o.json = text == "json" })
	flags.VarP(v, "output", "o", "format of the result")
	return o
}

// JSON reports whether the result is to be printed as JSON.
func (o *Output) JSON() bool { return o.json }

// Print writes result to w as indented JSON, or calls text, which writes it as text.
func (o *Output) Print(w io.Writer, result any, text func(io.Writer) error) error {
	if !o.json {
		return text(w)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(result); err != nil {
		return fmt.Errorf("printing the result as JSON: %w", err)
	}
	return nil
}
