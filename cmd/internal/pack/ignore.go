package pack

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// pattern is a line of a .gitignore.
type pattern struct {
	text     string // without what the other members say
	literal  int    // so many of its first bytes have no special meaning
	negated  bool   // begins with !: what it names is not ignored
	dirs     bool   // ends with a slash: names directories only
	anchored bool   // has a slash: names paths below its directory, not names at any depth
}

// rules are the patterns of one file.
type rules struct {
	dir      string // of the file: "" or a path that ends with a slash
	patterns []pattern
}

// readRules reads dir/name below root. As git, it follows no link and takes what is no file for
// a file without patterns.
func readRules(root, dir, name string) (rules, error) {
	file := filepath.Join(root, dir, name)
	info, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return rules{}, nil
	}
	if err != nil {
		return rules{}, err
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return rules{}, fmt.Errorf("reading which files are ignored: %w", err)
	}
	return rules{dir: dir, patterns: parse(raw)}, nil
}

// parse reads the lines of a .gitignore.
func parse(raw []byte) (all []pattern) {
	raw = bytes.TrimPrefix(raw, []byte("\ufeff"))
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if strings.HasPrefix(line, "#") {
			continue
		}
		p := pattern{text: trimSpaces(line)}
		p.text, p.negated = strings.CutPrefix(p.text, "!")
		p.text, p.dirs = strings.CutSuffix(p.text, "/")
		p.anchored = strings.Contains(p.text, "/")
		p.text = strings.TrimPrefix(p.text, "/")
		if p.text == "" {
			continue
		}
		if p.literal = strings.IndexAny(p.text, `*?[\`); p.literal < 0 {
			p.literal = len(p.text)
		}
		all = append(all, p)
	}
	return all
}

// trimSpaces removes the spaces at the end of a line, but not one that follows a backslash.
func trimSpaces(line string) string {
	end := 0
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case ' ':
			continue
		case '\\':
			i++
		}
		end = min(i+1, len(line))
	}
	return line[:end]
}

// last returns the last pattern that names a path, which decides; nil if none does.
func (r rules) last(name string, isDir bool) *pattern {
	below, ok := strings.CutPrefix(name, r.dir)
	if !ok {
		return nil
	}
	base := path.Base(below)
	for i := len(r.patterns) - 1; i >= 0; i-- {
		p := &r.patterns[i]
		text := base
		if p.anchored {
			text = below
		}
		if (isDir || !p.dirs) && p.names(text) {
			return p
		}
	}
	return nil
}

// bringBack reports whether there is a line that begins with !.
func (r rules) bringBack() bool {
	for _, p := range r.patterns {
		if p.negated {
			return true
		}
	}
	return false
}

// reaches reports whether a line that begins with ! names a path below dir: one with a slash,
// whose first parts are dir.
func (r rules) reaches(dir string) bool {
	parts := strings.Split(dir, "/")
	for _, p := range r.patterns {
		if !p.negated || !p.anchored {
			continue
		}
		wanted := strings.Split(p.text, "/")
		found := len(wanted) > len(parts)
		for i := 0; found && i < len(parts); i++ {
			found = wanted[i] != "**" && wild(wanted[i], parts[i])
		}
		if found {
			return true
		}
	}
	return false
}

// names reports whether the pattern matches the whole text.
func (p *pattern) names(text string) bool {
	if len(text) < p.literal || text[:p.literal] != p.text[:p.literal] {
		return false
	}
	return wild(p.text[p.literal:], text[p.literal:])
}

// wild matches as git does: * and ? and classes match within a part of a path, and ** as a whole
// part any number of parts. After a mismatch it goes back to the last star only: what the
// stars before it match can't help.
func wild(glob, text string) bool {
	g, t := 0, 0
	star, starText := -1, 0   // after the last *, and where its match ends
	stars, starsText := -1, 0 // after the last **/, and where its match ends
	for {
		switch {
		case g < len(glob) && glob[g] == '*':
			end := g
			for end < len(glob) && glob[end] == '*' {
				end++
			}
			whole := end-g > 1 && (g == 0 || glob[g-1] == '/')
			if whole && end == len(glob) {
				return true
			}
			if whole && glob[end] == '/' {
				g = end + 1
				star, stars, starsText = -1, g, t
			} else {
				g = end
				star, starText = g, t
			}
			continue
		case g < len(glob) && t < len(text):
			if next, ok := one(glob, g, text[t]); ok {
				g, t = next, t+1
				continue
			}
		case g == len(glob) && t == len(text):
			return true
		}
		if star >= 0 && starText < len(text) && text[starText] != '/' {
			starText++
			g, t = star, starText
			continue
		}
		slash := -1
		if stars >= 0 {
			slash = strings.IndexByte(text[starsText:], '/')
		}
		if slash < 0 {
			return false
		}
		starsText += slash + 1
		g, t, star = stars, starsText, -1
	}
}

// one matches a byte with the part of the pattern at g, which is no star, and returns where the
// next part begins.
func one(glob string, g int, b byte) (next int, ok bool) {
	switch glob[g] {
	case '?':
		return g + 1, b != '/'
	case '[':
		return class(glob, g+1, b)
	case '\\':
		return g + 2, g+1 < len(glob) && glob[g+1] == b
	}
	return g + 1, glob[g] == b
}

// class matches a byte with what follows a [. A class that doesn't end matches nothing.
func class(glob string, g int, b byte) (next int, ok bool) {
	negated := g < len(glob) && (glob[g] == '!' || glob[g] == '^')
	if negated {
		g++
	}
	found, before := false, -1 // before: the byte that a range may begin with
	for first := true; ; first = false {
		if g >= len(glob) {
			return g, false
		}
		c := glob[g]
		switch {
		case c == ']' && !first:
			return g + 1, found != negated && b != '/'
		case c == '[' && g+1 < len(glob) && glob[g+1] == ':':
			end := strings.IndexByte(glob[g+2:], ']')
			if end < 0 {
				return g, false
			}
			name, closed := strings.CutSuffix(glob[g+2:g+2+end], ":")
			if closed {
				known, in := posix(name, b)
				if !known {
					return g, false
				}
				found, before, g = found || in, -1, g+end+3
				continue
			}
			found = found || b == '['
			before, g = int(c), g+1
		case c == '-' && before >= 0 && g+1 < len(glob) && glob[g+1] != ']':
			g++
			if glob[g] == '\\' {
				if g++; g >= len(glob) {
					return g, false
				}
			}
			found = found || before <= int(b) && b <= glob[g]
			before, g = -1, g+1
		default:
			if c == '\\' {
				if g++; g >= len(glob) {
					return g, false
				}
				c = glob[g]
			}
			found = found || b == c
			before, g = int(c), g+1
		}
	}
}

// posix reports whether a class such as alpha is known, and has a byte.
func posix(name string, b byte) (known, in bool) {
	lower, upper, digit := 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9'
	alnum, graph := lower || upper || digit, '!' <= b && b <= '~'
	switch name {
	case "alnum":
		return true, alnum
	case "alpha":
		return true, lower || upper
	case "blank":
		return true, b == ' ' || b == '\t'
	case "cntrl":
		return true, b < ' ' || b == 127
	case "digit":
		return true, digit
	case "graph":
		return true, graph
	case "lower":
		return true, lower
	case "print":
		return true, graph || b == ' '
	case "punct":
		return true, graph && !alnum
	case "space":
		return true, b == ' ' || '\t' <= b && b <= '\r'
	case "upper":
		return true, upper
	case "xdigit":
		return true, digit || 'a' <= b && b <= 'f' || 'A' <= b && b <= 'F'
	}
	return false, false
}
