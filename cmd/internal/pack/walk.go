package pack

import (
	"cmp"
	"context"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// standing is what holds for the files of a directory that no line of IgnoreFile names.
type standing int

const (
	packed  standing = iota // those that nothing ignores are packed
	ignored                 // none is packed
	brought                 // all are packed: IgnoreFile has brought their directory back
)

// walk adds what is below a directory. Outside of git, known is nil, and what is ignored stands in each
// directory's .gitignore, of which base are those above. In git, known are the files that git has
// named, which are there already.
func (l *lister) walk(ctx context.Context, dir string, known map[string]bool, now standing, base ...rules) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	entries, err := os.ReadDir(filepath.Join(l.root, dir))
	if err != nil {
		return err
	}
	plain := known == nil && !l.options.All && now == packed
	if plain {
		own, err := readRules(l.root, slashed(dir), ".gitignore")
		if err != nil {
			return err
		}
		base = append(slices.Clip(base), own)
	}
	for _, d := range entries {
		if d.Name() == ".git" {
			continue
		}
		name := path.Join(dir, d.Name())
		next, descend := l.judge(name, d.IsDir(), now, known, base)
		switch {
		case !d.IsDir() && (next == ignored || known[name]):
		case !d.IsDir():
			err = l.add(name)
		case !descend:
		case plain && next == packed && hasGit(filepath.Join(l.root, name)):
			err = l.repository(ctx, name)
		default:
			if known == nil && next != ignored {
				l.Entries = append(l.Entries, Entry{Name: name, Mode: fs.ModeDir})
			}
			err = l.walk(ctx, name, known, next, base...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// judge says what holds for a file, or for what is in a directory, and whether to look into it.
func (l *lister) judge(name string, isDir bool, now standing, known map[string]bool, base []rules) (next standing, descend bool) {
	if l.options.All {
		return packed, true
	}
	unknown := known != nil && (l.hidden[name] || !isDir && !known[name])
	if next = now; now == packed && (unknown || ignores(base, name, isDir)) {
		next = ignored
	}
	p := l.ignore.last(name, isDir)
	switch {
	case p == nil:
	case !p.negated:
		return ignored, false
	case next == ignored && (now != ignored || p.anchored):
		next = brought
	}
	return next, next != ignored || l.ignore.reaches(name)
}

// ignores reports what the .gitignore files say, of which those further down win.
func ignores(base []rules, name string, isDir bool) bool {
	for _, r := range slices.Backward(base) {
		if p := r.last(name, isDir); p != nil {
			return !p.negated
		}
	}
	return false
}

// slashed returns a directory as it begins the paths in it.
func slashed(dir string) string {
	if dir == "" {
		return ""
	}
	return dir + "/"
}

// Weight is the size of a file, or of all that is in a directory.
type Weight struct {
	Name  string `json:"name"` // of a directory with a slash at its end
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
}

func names(all []Weight) []string {
	out := make([]string, 0, len(all))
	for _, w := range all {
		out = append(out, w.Name)
	}
	return out
}

// heavier orders weights for people: the heaviest first.
func heavier(a, b Weight) int {
	return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
}

// LeftOut returns what --all would pack too, heaviest first. A directory of which nothing is packed is one
// entry. What can't be read is not in it.
func (t *Tree) LeftOut() (all []Weight, total Weight) {
	known := map[string]bool{}
	for _, e := range t.Entries {
		known[e.Name] = true
	}
	// below returns what is left out below dir, which is not packed itself if whole is set.
	var below func(dir string, whole bool) Weight
	below = func(dir string, whole bool) (sum Weight) {
		entries, _ := os.ReadDir(filepath.Join(t.root, dir))
		for _, d := range entries {
			name := path.Join(dir, d.Name())
			if d.Name() == ".git" || !d.IsDir() && known[name] {
				continue
			}
			w := Weight{Name: name, Files: 1}
			if d.IsDir() {
				w = below(name, whole || !known[name])
				w.Name = name + "/"
			} else if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
				w.Bytes = info.Size()
			}
			if whole {
				sum.Files += w.Files
				sum.Bytes += w.Bytes
			} else if w.Files > 0 && (!d.IsDir() || !known[name]) {
				all = append(all, w)
			}
		}
		return sum
	}
	below("", false)
	slices.SortFunc(all, heavier)
	for _, w := range all {
		total.Files += w.Files
		total.Bytes += w.Bytes
	}
	return all, total
}

// heaviest returns the n heaviest directories. One of which nearly everything is in one place is not
// in the list; that place is, even if it is a file.
func heaviest(entries []Entry, n int) []Weight {
	sums := map[string]*Weight{}
	files := map[string]bool{}
	for _, e := range entries {
		if e.Mode.IsDir() {
			continue
		}
		files[e.Name] = true
		for name := e.Name; name != "."; name = path.Dir(name) {
			if sums[name] == nil {
				sums[name] = &Weight{Name: name}
			}
			sums[name].Files++
			sums[name].Bytes += e.Size
		}
	}
	hollow, lone := map[string]bool{}, map[string]bool{}
	for name, w := range sums {
		dir := path.Dir(name)
		if over := sums[dir]; over == nil || w.Bytes*10 >= over.Bytes*9 {
			hollow[dir], lone[name] = true, true
		}
	}
	var all []Weight
	for name, w := range sums {
		if !hollow[name] && (!files[name] || lone[name]) {
			if !files[name] {
				w.Name += "/"
			}
			all = append(all, *w)
		}
	}
	slices.SortFunc(all, heavier)
	return all[:min(len(all), n)]
}

// shellWord quotes a path for a shell, if it has to be.
func shellWord(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !strings.ContainsRune("/._-+:@%", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
