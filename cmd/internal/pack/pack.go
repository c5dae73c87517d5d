package pack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"takt/cmd/internal/cli"
	"takt/store"
)

// IgnoreFile is the name of the file whose lines, as those of a .gitignore, leave files out of a
// source, or bring back what git ignores.
const IgnoreFile = ".taktignore"

// Options say what is packed.
type Options struct {
	Dir string
	// All packs everything except .git, as takt 0.1.0 did.
	All bool
	// LFSPointers packs pointers of Git LFS. Without it they are an error.
	LFSPointers bool
	// Git is the git program. Defaults to that of PATH.
	Git string
}

// Entry is a file, a symbolic link or a directory of a source.
type Entry struct {
	Name string // its path in the source, with slashes
	Size int64  // of a file
	Mode fs.FileMode
}

// Tree is the source that is packed of a directory.
type Tree struct {
	// Entries are in the order of the archive.
	Entries []Entry
	// Commit is nil outside of git, and, with All, where git can't say.
	Commit *Commit
	// Missing is how many files a sparse checkout leaves out.
	Missing int

	root    string
	options Options
}

// Files returns how many files and links there are.
func (t *Tree) Files() (n int) {
	for _, e := range t.Entries {
		if !e.Mode.IsDir() {
			n++
		}
	}
	return n
}

// Bytes returns the size of all files.
func (t *Tree) Bytes() (sum int64) {
	for _, e := range t.Entries {
		sum += e.Size
	}
	return sum
}

// lister collects the entries of a source.
type lister struct {
	*Tree
	git    git
	ignore rules           // of IgnoreFile
	dirs   map[string]bool // what is known of directories: whether they are ones, and no links
	left   map[string]bool // and whether IgnoreFile leaves them out
	hidden map[string]bool // what git ignores, if IgnoreFile brings something back
	absent []string        // submodules that are not checked out
}

// List returns what is packed of a directory. A source without a file is an error.
func List(ctx context.Context, o Options) (*Tree, error) {
	root, err := filepath.Abs(o.Dir)
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		return nil, cli.AsUsage(err)
	}
	l := lister{
		Tree: &Tree{root: root, options: o}, git: git{program: o.Git}, dirs: map[string]bool{".": true}, left: map[string]bool{".": false}, hidden: map[string]bool{},
	}
	if err := l.list(ctx); err != nil {
		return nil, err
	}
	l.addParents()
	slices.SortFunc(l.Entries, func(a, b Entry) int { return compareNames(a.Name, b.Name) })
	if err := l.check(); err != nil {
		return nil, err
	}
	return l.Tree, nil
}

func (l *lister) list(ctx context.Context) (err error) {
	if l.options.All {
		l.Commit = l.git.commit(ctx, l.root)
		return l.walk(ctx, "", nil, packed)
	}
	if l.ignore, err = readRules(l.root, "", IgnoreFile); err != nil {
		return err
	}
	repository, err := inRepository(l.root)
	if err != nil {
		return err
	}
	if !repository {
		return l.walk(ctx, "", nil, packed)
	}
	l.Commit = &Commit{}
	if err := l.repository(ctx, ""); err != nil {
		return err
	}
	if len(l.absent) > 0 {
		return cli.Usage("submodules are not checked out: %s. Run: git -C %s submodule update --init --recursive (or name them in %s)",
			Some(l.absent), shellWord(l.options.Dir), IgnoreFile)
	}
	if !l.ignore.bringBack() {
		return nil
	}
	known := map[string]bool{}
	for _, e := range l.Entries {
		known[e.Name] = true
	}
	return l.walk(ctx, "", known, packed)
}

// addParents adds the directories of all files.
func (l *lister) addParents() {
	known := map[string]bool{".": true}
	for _, e := range l.Entries {
		if e.Mode.IsDir() {
			known[e.Name] = true
		}
	}
	for _, e := range l.Entries {
		for dir := path.Dir(e.Name); !known[dir]; dir = path.Dir(dir) {
			known[dir] = true
			l.Entries = append(l.Entries, Entry{Name: dir, Mode: fs.ModeDir})
		}
	}
}

// add adds the file or link of this name, unless it isn't there any more.
func (l *lister) add(name string) error {
	info, err := os.Lstat(filepath.Join(l.root, name))
	switch {
	case isGone(err) || err == nil && info.IsDir():
		return nil
	case err != nil:
		return err
	}
	e := Entry{Name: name, Mode: info.Mode()}
	if info.Mode().IsRegular() {
		e.Size = info.Size()
	}
	l.Entries = append(l.Entries, e)
	return nil
}

// isGone reports whether there is no file, or what its directory should be is a file.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotDirectory)
}

// check refuses what no worker would unpack, and a source without a file.
func (l *lister) check() error {
	for _, e := range l.Entries {
		switch {
		case e.Mode&^(fs.ModePerm|fs.ModeDir|fs.ModeSymlink|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0:
			return cli.Usage("%q is neither file, directory nor link", e.Name)
		case !utf8.ValidString(e.Name):
			return cli.Usage("%q: no worker unpacks a name that is not UTF-8; rename it, or leave it out with %s", e.Name, IgnoreFile)
		case strings.Contains(e.Name, `\`):
			return cli.Usage("%q: no worker unpacks a name with a backslash; rename it, or leave it out with %s", e.Name, IgnoreFile)
		}
	}
	if l.Files() > 0 {
		return nil
	}
	if left, _ := l.LeftOut(); len(left) > 0 {
		return cli.Usage("%s: all files are ignored: %s. --all packs them; in a %s, a line such as !/%s brings one back",
			l.options.Dir, Some(names(left)), IgnoreFile, left[0].Name)
	}
	return ErrNoFile(l.options.Dir)
}

// ErrNoFile returns the error for a directory or an archive without a file.
func ErrNoFile(source string) error {
	return cli.Usage("%s has no file: there is nothing to build", source)
}

// Collisions returns names that are one where upper and lower case are the same, as on most Macs.
func (t *Tree) Collisions() (names []string) {
	seen := map[string]Entry{}
	for _, e := range t.Entries {
		folded := strings.ToLower(e.Name)
		if old, ok := seen[folded]; ok && (!old.Mode.IsDir() || !e.Mode.IsDir()) {
			names = append(names, old.Name+" and "+e.Name)
		}
		seen[folded] = e
	}
	return names
}

// compareNames puts a directory before what is in it, and that before all else, as a walk does.
func compareNames(a, b string) int {
	for i := range min(len(a), len(b)) {
		switch {
		case a[i] == b[i]:
		case a[i] == '/':
			return -1
		case b[i] == '/':
			return 1
		default:
			return int(a[i]) - int(b[i])
		}
	}
	return len(a) - len(b)
}

// shown is how many names an error or a note has.
const shown = 10

// Some returns the first names of a list as a text.
func Some(names []string) string {
	quoted := make([]string, 0, shown)
	for _, name := range names[:min(len(names), shown)] {
		quoted = append(quoted, Quote(name))
	}
	text := strings.Join(quoted, ", ")
	if more := len(names) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Quote returns a name as it is, or quoted if it would not be read as one word.
func Quote(name string) string {
	odd := func(r rune) bool {
		return r == ' ' || strings.ContainsRune("\"',", r) || r == utf8.RuneError || store.Controls(r)
	}
	if name != "" && !strings.ContainsFunc(name, odd) {
		return name
	}
	return fmt.Sprintf("%q", name)
}
