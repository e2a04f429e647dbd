package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/nodens-dns/nodens/internal/report"
)

// printTruncated writes the clients that get truncated replies and never ask over TCP, at most so many rows, and what to
// change; nothing for none.
func printTruncated(out io.Writer, list []report.TruncatedClient, rows int) error {
	if len(list) == 0 {
		return nil
	}
	shown := list
	if rows > 0 {
		shown = list[:min(rows, len(list))]
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nThese clients got truncated replies and have never asked over TCP: they miss records.\n\nCLIENT\tREPLIES\tCHANGE\tWHY")
	texts := make(map[string]string)
	for i := range shown {
		row := fmt.Sprintf("%s\t%d", shown[i].Label(), shown[i].Replies)
		for _, r := range shown[i].Remedies {
			fmt.Fprintf(w, "%s\t%s\t%s\n", row, r.Kind, r.Reason)
			row, texts[r.Kind] = "\t", r.Text
		}
	}
	printMore(w, len(list)-len(shown))
	fmt.Fprintln(w)
	for _, kind := range []string{report.RemedyClient, report.RemedyBufsize} {
		if text := texts[kind]; text != "" {
			fmt.Fprintf(w, "%s: %s\n", kind, text)
		}
	}
	return w.Flush()
}
