package migrate

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
)

// variable matches a reference to the environment.
var variable = regexp.MustCompile(`\{\$([^{}\s]+)\}|\{%([^{}%\s]+)%\}`)

// Values are the values of environment variables.
type Values map[string]string

// Replace returns a Corefile with the variables that have a value replaced. The others are left to the parser, which
// takes them from this process's environment. A value with spaces stays one word.
func (v Values) Replace(text string) string {
	return variable.ReplaceAllStringFunc(text, func(ref string) string {
		value := v[variableName(ref)]
		switch {
		case value == "":
			return ref
		case strings.ContainsAny(value, " \t\n"):
			return `"` + value + `"`
		}
		return value
	})
}

func variableName(ref string) string { return strings.Trim(ref, "{$%}") }

// Variables returns the names of the environment variables in a Corefile, without duplicates.
func Variables(text string) (names []string) {
	for line := range strings.Lines(text) {
		code, _, _ := strings.Cut(line, "#")
		for _, ref := range variable.FindAllString(code, -1) {
			if name := variableName(ref); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// guesses stand for values that are not known: nothing, an address, a number, a duration, a zone, a port and a switch. The
// addresses and the zone are reserved for documentation (RFC 5737, RFC 2606).
var guesses = []string{"", placeholderAddr, "30", "30s", "example.org", "on", "/etc/resolv.conf"}

// maxGuessed bounds the variables that are guessed: each takes some parses.
const maxGuessed = 32

// Guess adds a value for each variable that has none: the first guess with which parse has the fewest complaints. It returns
// a text that names them and what stands for each, "" if there are none.
func (v Values) Guess(names []string, parse func(Values) (*config.Config, error)) (note string) {
	var parts []string
	for _, name := range names[:min(len(names), maxGuessed)] {
		if _, known := v[name]; known || os.Getenv(name) != "" {
			continue
		}
		best, fewest := "", -1
		for _, guess := range guesses {
			v[name] = guess
			if n := complaints(parse(v)); fewest < 0 || n < fewest {
				best, fewest = guess, n
			}
		}
		v[name] = best
		if best == "" {
			best = "nothing"
		}
		parts = append(parts, fmt.Sprintf("%s as %s", name, best))
	}
	if len(parts) == 0 {
		return ""
	}
	return "environment variables whose values are not known here: read " + strings.Join(parts, ", ")
}

// complaints returns how many errors and warnings the parser has. An error outweighs warnings.
func complaints(cfg *config.Config, err error) int {
	const anError = 1000
	if err != nil {
		return anError * len(config.ParseErrors(err))
	}
	return len(cfg.Suspicious) + len(cfg.Warnings)
}

// environment returns the values that the container's environment has, as far as the objects tell them.
func (m *migration) environment() Values {
	values := make(Values)
	data := func(name string) object {
		return m.Objects.get("ConfigMap", m.pod.daemonSet.namespace(), name).child("data")
	}
	for _, from := range m.pod.container.children("envFrom") {
		configMap := data(from.text("configMapRef", "name"))
		for key := range configMap {
			values[from.text("prefix")+key] = configMap.text(key)
		}
	}
	for _, e := range m.pod.container.children("env") {
		if ref := e.child("valueFrom", "configMapKeyRef"); ref != nil && data(ref.text("name")) != nil {
			values[e.text("name")] = data(ref.text("name")).text(ref.text("key"))
			continue
		}
		switch e.text("valueFrom", "fieldRef", "fieldPath") {
		case "status.hostIP", "status.podIP": // an address of the node
			values[e.text("name")] = placeholderAddr
		case "":
			values[e.text("name")] = e.text("value")
		}
		if e.value("valueFrom") != nil && values[e.text("name")] == "" {
			delete(values, e.text("name"))
		}
	}
	return values
}
