package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// The values of -o, --output.
const (
	outputText  = "text"
	outputTable = "table"
	outputWide  = "wide"
	outputJSON  = "json"
	outputYAML  = "yaml"
)

// Output is how a command prints its result: the value of -o, --output.
type Output struct{ format string }

// AddOutput adds the flag -o, --output to flags, for text or JSON.
func AddOutput(flags *pflag.FlagSet) *Output { return addOutput(flags, outputText, outputJSON) }

// AddTableOutput adds the flag -o, --output to flags, for a table with fewer or more columns, JSON or
// YAML.
func AddTableOutput(flags *pflag.FlagSet) *Output {
	return addOutput(flags, outputTable, outputWide, outputJSON, outputYAML)
}

// AddLinesOutput adds the flag -o, --output to flags, for a table with fewer or more columns, or an object of
// JSON on each line.
func AddLinesOutput(flags *pflag.FlagSet) *Output {
	return addOutput(flags, outputTable, outputWide, outputJSON)
}

// addOutput adds the flag. The first format is the default.
func addOutput(flags *pflag.FlagSet, formats ...string) *Output {
	o := &Output{format: formats[0]}
	flags.VarP(newEnum(o.format, formats, func(i int) { o.format = formats[i] }), "output", "o", "format of the result")
	return o
}

// JSON reports whether the result is to be printed as JSON.
func (o *Output) JSON() bool { return o.format == outputJSON }

// Table reports whether the result is to be printed as a table, wide or not.
func (o *Output) Table() bool { return o.format == outputTable || o.format == outputWide }

// Wide reports whether the table has all columns.
func (o *Output) Wide() bool { return o.format == outputWide }

// Print writes result to w as indented JSON or as YAML, or calls text, which writes it as text.
func (o *Output) Print(w io.Writer, result any, text func(io.Writer) error) error {
	switch o.format {
	case outputJSON:
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(result); err != nil {
			return fmt.Errorf("printing the result as JSON: %w", err)
		}
		return nil
	case outputYAML:
		b, err := yaml.Marshal(result)
		if err == nil {
			_, err = w.Write(b)
		}
		if err != nil {
			return fmt.Errorf("printing the result as YAML: %w", err)
		}
		return nil
	default:
		return text(w)
	}
}
