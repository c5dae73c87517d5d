package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// mutant is a fault in a mechanism that a promise stands on, and the test that finds it.
type mutant struct {
	name, promise string
	pkg, tests    string // directory, and the pattern for go test -run
	edits         []edit
}

// edit replaces the one occurrence of old in file.
type edit struct{ file, old, new string }

var testPattern = regexp.MustCompile(`^([A-Za-z0-9_|]+)(/\S.*)?$`)

// parse reads a list of mutants; testdata/mutants.txt says how one is written.
func parse(text string) (list []*mutant, err error) {
	var m *mutant
	var file string
	fresh := true // whether the next line of old text begins an edit
	for i, line := range strings.Split(text, "\n") {
		key, value, _ := strings.Cut(line, " ")
		switch key {
		case "mutant:":
			m, fresh = &mutant{name: value}, true
			list = append(list, m)
			continue
		case "", "#":
			continue
		}
		if m == nil {
			return nil, fmt.Errorf("line %d: no mutant begins here", i+1)
		}
		last := len(m.edits) - 1
		switch {
		case key == "promise:":
			m.promise = value
		case key == "test:":
			m.pkg, m.tests, _ = strings.Cut(value, " ")
			parts := testPattern.FindStringSubmatch(m.tests)
			if parts == nil {
				return nil, fmt.Errorf("line %d: want PACKAGE TestName", i+1)
			}
			m.tests = "^(" + parts[1] + ")$" + parts[2]
		case key == "file:":
			file, fresh = value, true
		case key == "-" && fresh:
			m.edits, fresh = append(m.edits, edit{file: file, old: value}), false
		case key == "-":
			m.edits[last].old += "\n" + value
		case key == "+" && last >= 0 && !fresh:
			m.edits[last].new, fresh = value, true
		case key == "+" && last >= 0:
			m.edits[last].new += "\n" + value
		default:
			return nil, fmt.Errorf("line %d: unknown %q", i+1, key)
		}
	}
	return list, nil
}

var testName = regexp.MustCompile(`\bTest\w+`)

// names returns the names of m's tests.
func (m *mutant) names() []string { return testName.FindAllString(m.tests, -1) }

// mutate returns the files below root that m changes, by their names there.
func (m *mutant) mutate(root string) (map[string][]byte, error) {
	if m.promise == "" || m.tests == "" || len(m.edits) == 0 {
		return nil, errors.New("a promise, a test and a change are needed")
	}
	files := map[string][]byte{}
	for _, e := range m.edits {
		text, ok := files[e.file]
		if !ok {
			var err error
			if text, err = os.ReadFile(filepath.Join(root, filepath.FromSlash(e.file))); err != nil {
				return nil, err
			}
		}
		if n := bytes.Count(text, []byte(e.old)); n != 1 {
			return nil, fmt.Errorf("%s: %d times there, want once: %s", e.file, n, e.old)
		}
		files[e.file] = bytes.Replace(text, []byte(e.old), []byte(e.new), 1)
	}
	return files, nil
}
