package migrate

import (
	"cmp"
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

// guesses stand for values that are not known: nothing, an address, a number or port, a duration, a zone and a switch. The
// addresses and the zone are reserved for documentation (RFC 5737, RFC 2606).
var guesses = []string{"", placeholderAddr, "30", "30s", guessedZone, "on"}

const guessedZone = "example.org"

// maxGuessed bounds the variables that are guessed: each takes some parses.
const maxGuessed = 32

// Guess adds a value for each variable that has none: the first guess with which parse has the fewest complaints. It returns
// the names of these variables.
func (v Values) Guess(names []string, parse func(Values) (*config.Config, error)) (unknown []string) {
	for _, name := range names[:min(len(names), maxGuessed)] {
		if _, known := v[name]; !known && os.Getenv(name) == "" {
			unknown = append(unknown, name)
		}
	}
	for range 2 { // the second time the other variables have values that parse
		for _, name := range unknown {
			v.guess(name, parse)
		}
	}
	return unknown
}

// Note returns a text that names guessed variables and what stands for each, "" for none.
func (v Values) Note(guessed []string) string {
	var parts []string
	for _, name := range guessed {
		parts = append(parts, fmt.Sprintf("%s as %s", name, cmp.Or(v[name], "nothing")))
	}
	if len(parts) == 0 {
		return ""
	}
	return "environment variables whose values are not known here: read " + strings.Join(parts, ", ")
}

// guess sets the value of one variable.
func (v Values) guess(name string, parse func(Values) (*config.Config, error)) {
	best, fewest := "", -1
	for _, guess := range guesses {
		v[name] = guess
		if n := complaints(parse(v)); fewest < 0 || n < fewest {
			best, fewest = guess, n
		}
	}
	v[name] = best
}

// complaints returns how many errors and warnings the parser has. An error outweighs warnings.
func complaints(cfg *config.Config, err error) int {
	const anError = 1000
	if err != nil {
		return anError * len(config.ParseErrors(err))
	}
	return len(cfg.Suspicious) + len(cfg.Warnings)
}

// setValues finds the values of the environment variables of the Corefile and of the mounted files, and writes these files.
func (m *migration) setValues(c *corefile) error {
	c.values = m.environment()
	text := c.text
	for _, f := range c.mounted {
		text += "\n" + f.Text
	}
	if err := c.writeMounted(); err != nil {
		return err
	}
	guessed := c.values.Guess(Variables(text), func(Values) (*config.Config, error) {
		if err := c.writeMounted(); err != nil {
			return nil, err
		}
		return c.load(c.text)
	})
	if len(guessed) == 0 {
		return nil
	}
	c.guessedZone = slices.ContainsFunc(guessed, func(name string) bool { return c.values[name] == guessedZone })
	m.noteFor(Todo, c.configMap.describe()+", "+c.key, "%s", c.values.Note(guessed))
	return c.writeMounted()
}

// environment returns the values that the container's environment has, as far as the objects tell them.
func (m *migration) environment() Values {
	values := make(Values)
	for _, from := range m.pod.container.children("envFrom") {
		configMap := m.configMapData(from.text("configMapRef", "name"))
		for key := range configMap {
			values[from.text("prefix")+key] = configMap.text(key)
		}
	}
	for _, e := range m.pod.container.children("env") {
		if value, known := m.variableValue(e); known {
			values[e.text("name")] = value
		} else {
			delete(values, e.text("name"))
		}
	}
	return values
}

// variableValue returns the value of a variable of the container. An address that only a node knows has a placeholder.
func (m *migration) variableValue(e object) (value string, known bool) {
	if e.value("valueFrom") == nil {
		return e.text("value"), true
	}
	switch e.text("valueFrom", "fieldRef", "fieldPath") {
	case "status.hostIP", "status.podIP":
		return placeholderAddr, true
	}
	ref := e.child("valueFrom", "configMapKeyRef")
	data := m.configMapData(ref.text("name"))
	return data.text(ref.text("key")), data != nil
}

func (m *migration) configMapData(name string) object {
	return m.Objects.get("ConfigMap", m.pod.daemonSet.namespace(), name).child("data")
}
