package pack_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/pack"
	"takt/store/storetest/needs"
)

func TestListInGit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		make func(d dir) // after a first commit of a and .gitignore, which has *.log and out/
		at   string      // the directory that is listed
		want []string
	}{
		{"nothing else", func(dir) {}, "", []string{".gitignore", "a"}},
		{"ignored files", func(d dir) { d.write("x.log", "out/big", "sub/y.log") }, "", []string{".gitignore", "a"}},
		{"untracked files", func(d dir) { d.write("new", "sub/new") }, "", []string{".gitignore", "a", "new", "sub/new"}},
		{"files that are deleted", func(d dir) { d.remove("a") }, "", []string{".gitignore"}},
		{"files that were tracked first and ignored later", func(d dir) {
			d.write("old.log")
			d.git("add", "-f", "old.log")
		}, "", []string{".gitignore", "a", "old.log"}},
		{".git/info/exclude", func(d dir) { d.write(".git/info/exclude=new\n", "new") }, "", []string{".gitignore", "a"}},
		{"the user's excludes", func(d dir) {
			d.write(".git/mine=new\n", "new")
			d.git("config", "core.excludesFile", filepath.Join(d.path, ".git/mine"))
		}, "", []string{".gitignore", "a"}},
		{"intent to add", func(d dir) {
			d.write("new=1")
			d.git("add", "-N", "new")
		}, "", []string{".gitignore", "a", "new"}},
		{"a conflict", func(d dir) {
			d.git("checkout", "-q", "-b", "other")
			d.write("a=other")
			d.git("commit", "-qam", "other")
			d.git("checkout", "-q", "main")
			d.write("a=main")
			d.git("commit", "-qam", "main")
			cmd := exec.Command("git", "merge", "-q", "other")
			cmd.Dir = d.path
			require.Error(d.t, cmd.Run())
			require.NotEmpty(d.t, d.git("ls-files", "-u"))
		}, "", []string{".gitignore", "a"}},
		{"a directory in the place of a file", func(d dir) {
			d.remove("a")
			d.write("a/new")
		}, "", []string{".gitignore", "a/new"}},
		{"a link in the place of a directory", func(d dir) {
			d.write("sub/secret", "elsewhere/secret")
			d.git("add", "sub")
			d.remove("sub")
			d.link("elsewhere", "sub")
		}, "", []string{".gitignore", "a", "elsewhere/secret", "sub"}},
		{"strange names", func(d dir) {
			d.write("-rf", "a\nb", `"quoted"`, "tab\there", " space ", "#x", "!x", "ü", "* ")
			d.git("add", "--", "-rf", "a\nb")
		}, "", []string{" space ", "!x", `"quoted"`, "#x", "* ", "-rf", ".gitignore", "a", "a\nb", "tab\there", "ü"}},
		{"names that differ in case", func(d dir) { d.write("A", "b/c", "B/c") }, "", []string{".gitignore", "A", "B/c", "a", "b/c"}},
		{"a directory of it, to which the rules of those above apply", func(d dir) {
			d.write("sub/deep/x", "sub/deep/y.log", "sub/.gitignore=z\n", "sub/deep/z", "other")
		}, "sub/deep", []string{"x"}},
		{"a directory of it, by a link", func(d dir) {
			d.write("sub/x", "sub/y.log")
			d.link("sub", "short")
		}, "short", []string{"x"}},
		{"files outside of a sparse checkout", func(d dir) {
			d.write("in/x", "out-of-it/x")
			d.git("add", "-A")
			d.git("commit", "-qm", "more")
			d.git("sparse-checkout", "set", "in")
		}, "", []string{".gitignore", "a", "in/x"}},
		{"a sparse index", func(d dir) {
			d.write("in/x", "out-of-it/x")
			d.git("add", "-A")
			d.git("commit", "-qm", "more")
			d.git("sparse-checkout", "set", "--cone", "--sparse-index", "in")
		}, "", []string{".gitignore", "a", "in/x"}},
		{"skip-worktree and assume-unchanged", func(d dir) {
			d.write("b", "c")
			d.git("add", "-A")
			d.git("update-index", "--skip-worktree", "b")
			d.git("update-index", "--assume-unchanged", "c")
			d.remove("b")
			d.remove("c")
		}, "", []string{".gitignore", "a"}},
		{"a worktree, whose .git is a file", func(d dir) {
			d.git("worktree", "add", "-q", "out/w")
			d.at("out/w").write("new", "x.log")
		}, "out/w", []string{".gitignore", "a", "new"}},
		{"another repository in it", func(d dir) {
			other := d.at("other")
			other.git("init", "-q")
			other.write(".gitignore=hidden\n", "hidden", "x.log", "deep/y")
		}, "", []string{".gitignore", "a", "other/.gitignore", "other/deep/y", "other/x.log"}},
		{"a repository in an ignored directory", func(d dir) {
			other := d.at("out/other")
			other.git("init", "-q")
			other.write("x")
		}, "", []string{".gitignore", "a"}},
		{"sockets and pipes, of which git has none", func(d dir) {
			require.NoError(d.t, syscall.Mkfifo(filepath.Join(d.path, "pipe"), 0o600))
		}, "", []string{".gitignore", "a"}},
		{"an ignored directory that can't be read", func(d dir) {
			d.write("out/x")
			require.NoError(d.t, os.Chmod(filepath.Join(d.path, "out"), 0))
			d.t.Cleanup(func() { _ = os.Chmod(filepath.Join(d.path, "out"), 0o700) })
		}, "", []string{".gitignore", "a"}},
		{"an empty .git below", func(d dir) {
			d.at("sub/.git")
			d.write("sub/x")
		}, "sub", []string{"x"}},
		{"all that git ignores, but .taktignore brings back", func(d dir) {
			d.write(".taktignore=!out/\nout/deep\n!.env\n", ".git/info/exclude=.env\n", ".env", "out/x", "out/y.log", "out/deep/z", "sub/.env", "sub/x.log")
		}, "", []string{".env", ".gitignore", ".taktignore", "a", "out/x", "out/y.log", "sub/.env"}},
		{"tracked files that .taktignore leaves out", func(d dir) {
			d.write("docs/x", "docs/deep/y", "z.md")
			d.git("add", "-A")
			d.write(".taktignore=docs\n*.md\n.taktignore\n")
		}, "", []string{".gitignore", "a"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newRepository(t, ".gitignore=*.log\nout/\n", "a")
			tt.make(d)
			require.ElementsMatch(t, tt.want, names(list(t, pack.Options{Dir: filepath.Join(d.path, tt.at)})))
		})
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	d := newRepository(t, "a", "in/x", "out/x", "out/y", "out/deep/z")
	d.git("sparse-checkout", "set", "in")
	tree := list(t, pack.Options{Dir: d.path})
	require.Equal(t, []string{"a", "in/x"}, names(tree))
	require.Equal(t, 3, tree.Missing)
	require.False(t, tree.Commit.Dirty)
}

// submodules returns a repository with a submodule lib, which has one itself, in a clone that has
// fetched both.
func submodules(t *testing.T) dir {
	t.Helper()
	deep := newRepository(t, "deep.c")
	lib := newRepository(t, "lib.c", ".gitignore=*.o\n")
	lib.git("submodule", "--quiet", "add", deep.path, "deep")
	lib.git("commit", "-qm", "deep")
	app := newRepository(t, "app.c")
	app.git("submodule", "--quiet", "add", lib.path, "lib")
	app.git("commit", "-qm", "lib")
	app.git("submodule", "--quiet", "update", "--init", "--recursive")
	return app
}

func TestListSubmodules(t *testing.T) {
	t.Parallel()
	all := []string{".gitmodules", "app.c", "lib/.gitignore", "lib/.gitmodules", "lib/deep/deep.c", "lib/lib.c"}
	app := submodules(t)
	app.at("lib").write("lib.o")
	tree := list(t, pack.Options{Dir: app.path})
	require.Equal(t, all, names(tree))
	require.False(t, tree.Commit.Dirty)

	app.at("lib/deep").write("new.c")
	tree = list(t, pack.Options{Dir: app.path})
	require.Equal(t, append(all[:4:4], "lib/deep/deep.c", "lib/deep/new.c", "lib/lib.c"), names(tree))
	require.True(t, tree.Commit.Dirty, "a file in a submodule")
	app.remove("lib/deep/new.c")

	app.at("lib/deep").write("deep.c=changed")
	require.True(t, list(t, pack.Options{Dir: app.path}).Commit.Dirty, "a change in a submodule")
	app.at("lib/deep").git("commit", "-qam", "changed")
	require.True(t, list(t, pack.Options{Dir: app.path}).Commit.Dirty, "another commit of a submodule")

	require.Equal(t, all[2:], prefixed("lib/", names(list(t, pack.Options{Dir: filepath.Join(app.path, "lib")}))))

	clone := newDir(t)
	clone.git("clone", "-q", app.path, "app")
	_, err := pack.List(t.Context(), pack.Options{Dir: clone.at("app").path})
	require.ErrorContains(t, err, "submodules are not checked out: lib. Run: git -C "+clone.at("app").path+" submodule update --init --recursive")
	require.Equal(t, cli.ExitUsage, cli.ExitCode(err))
	clone.at("app").remove("lib")
	_, err = pack.List(t.Context(), pack.Options{Dir: clone.at("app").path})
	require.ErrorContains(t, err, "submodules are not checked out: lib.")
	clone.at("app").write(".taktignore=lib/\n")
	require.Equal(t, []string{".gitmodules", ".taktignore", "app.c"}, names(list(t, pack.Options{Dir: clone.at("app").path})))
}

func prefixed(prefix string, names []string) (all []string) {
	for _, name := range names {
		all = append(all, prefix+name)
	}
	return all
}

func TestListRefuses(t *testing.T) {
	t.Parallel()
	needs.Git(t)
	in := func(files ...string) func(t *testing.T) dir {
		return func(t *testing.T) dir { t.Helper(); return newRepository(t, files...) }
	}
	tests := []struct {
		name string
		make func(t *testing.T) (d dir)
		edit func(d dir)
		o    pack.Options
		want string
	}{
		{"no git", in("a"), nil, pack.Options{Git: "/nonexistent/git"}, "there is no git here to say which files belong to it: install git, or pack everything with --all"},
		{"no git for a repository below", newDir, func(d dir) { d.at("sub").git("init", "-q") }, pack.Options{Git: "/nonexistent/git"}, "there is no git here"},
		{"a repository that git can't read", in("a"), func(d dir) { d.write(".git/HEAD=what?") }, pack.Options{}, "not a git repository"},
		{"a worktree whose repository is gone", in("a"), func(d dir) { d.remove(".git"); d.write(".git=gitdir: /nonexistent\n") }, pack.Options{}, "not a git repository: /nonexistent"},
		{"a damaged index", in("a"), func(d dir) { d.write(".git/index=what?") }, pack.Options{}, "index file"},
		{"a bare repository", newDir, func(d dir) { d.git("init", "-q", "--bare") }, pack.Options{}, "is a git repository without a working tree"},
		{"the inside of .git", in("a"), func(d dir) { d.at(".git/here").write("x") }, pack.Options{Dir: ".git/here"}, "must be run in a work tree"},
		{"an empty directory", newDir, nil, pack.Options{}, "has no file: there is nothing to build"},
		{"an empty directory of a repository", in("a"), func(d dir) { d.at("empty") }, pack.Options{Dir: "empty"}, "has no file"},
		{"directories without a file", newDir, func(d dir) { d.at("a/b") }, pack.Options{All: true}, "has no file"},
		{"a repository without a file", in(), nil, pack.Options{}, "has no file"},
		{
			"what is ignored as a whole", in(".gitignore=out/\n"), func(d dir) { d.write("out/x", "out/y/z") },
			pack.Options{Dir: "out"},
			"all files are ignored: x, y/. --all packs them; in a .taktignore, a line such as !/x brings one back",
		},
		{"a name that is not UTF-8", in("a"), func(d dir) { d.write("\xff") }, pack.Options{}, `"\xff": no worker unpacks a name that is not UTF-8`},
		{"a name with a backslash", newDir, func(d dir) { d.write(`a\b`) }, pack.Options{}, "no worker unpacks a name with a backslash"},
		{"a tracked file that has become a pipe", in("a"), func(d dir) { d.remove("a"); require.NoError(d.t, syscall.Mkfifo(filepath.Join(d.path, "a"), 0o600)) }, pack.Options{}, `"a" is neither file, directory nor link`},
		{"a pipe", newDir, func(d dir) { require.NoError(d.t, syscall.Mkfifo(filepath.Join(d.path, "a"), 0o600)) }, pack.Options{}, `"a" is neither file, directory nor link`},
		{"no directory", newDir, nil, pack.Options{Dir: "none"}, "no such file"},
		{"a filter that can't be switched off", in("a"), func(d dir) { d.git("config", "filter.a=b.clean", "false") }, pack.Options{}, "has an equals sign in its name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := tt.make(t)
			if tt.edit != nil {
				tt.edit(d)
			}
			tt.o.Dir = filepath.Join(d.path, tt.o.Dir)
			_, err := pack.List(t.Context(), tt.o)
			require.ErrorContains(t, err, tt.want)
			t.Log(err)
		})
	}
}

// git only warns of a directory that it can't read.
func TestAWarningOfGitIsAnError(t *testing.T) {
	t.Parallel()
	d := newRepository(t, "a")
	git := filepath.Join(t.TempDir(), "git")
	require.NoError(t, os.WriteFile(git, []byte("#!/bin/sh\necho \"warning: could not open directory 'b/': Permission denied\" >&2\nexec git \"$@\"\n"), 0o755))
	_, err := pack.List(t.Context(), pack.Options{Dir: d.path, Git: git})
	require.ErrorContains(t, err, "could not open directory 'b/'")
	if os.Geteuid() != 0 {
		d.write("b/c")
		require.NoError(t, os.Chmod(filepath.Join(d.path, "b"), 0))
		t.Cleanup(func() { _ = os.Chmod(filepath.Join(d.path, "b"), 0o700) })
		_, err := pack.List(t.Context(), pack.Options{Dir: d.path})
		require.ErrorContains(t, err, "could not open directory 'b/'", "as git itself says")
	}
}

func TestAnotherOwnersRepository(t *testing.T) {
	t.Parallel()
	needs.Root(t)
	d := newRepository(t, "a", ".gitignore=x\n")
	d.write("x")
	require.NoError(t, os.Chown(filepath.Join(d.path, ".git"), 12345, 12345))
	require.NoError(t, os.Chown(d.path, 12345, 12345))
	_, err := pack.List(t.Context(), pack.Options{Dir: d.path})
	require.ErrorContains(t, err, "dubious ownership")
	require.ErrorContains(t, err, "safe.directory", "git says what helps")
	require.Len(t, names(list(t, pack.Options{Dir: d.path, All: true})), 3)
}

func TestCommit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		make   func(d dir)
		at     string
		branch string
		dirty  bool
	}{
		{"clean", func(dir) {}, "", "main", false},
		{"ignored files", func(d dir) { d.write("x.log") }, "", "main", false},
		{"touched", func(d dir) { d.write("a=1") }, "", "main", false},
		{"changed", func(d dir) { d.write("a=2") }, "", "main", true},
		{"staged", func(d dir) { d.write("a=2"); d.git("add", "a") }, "", "main", true},
		{"deleted", func(d dir) { d.remove("a") }, "", "main", true},
		{"another mode", func(d dir) { require.NoError(d.t, os.Chmod(filepath.Join(d.path, "a"), 0o755)) }, "", "main", true},
		{"untracked", func(d dir) { d.write("new") }, "", "main", true},
		{"a change elsewhere", func(d dir) { d.write("a=2", "new") }, "sub", "main", false},
		{"a change there", func(d dir) { d.write("sub/b=2") }, "sub", "main", true},
		{"detached", func(d dir) { d.git("checkout", "-q", "--detach") }, "", "", false},
		{"a branch with a slash", func(d dir) { d.git("checkout", "-q", "-b", "fix/a") }, "", "fix/a", false},
		{"a file of an ended line by Windows", func(d dir) {
			d.write(".gitattributes=* text=auto\n", "crlf=a\r\n")
			d.git("add", "-A")
			d.git("commit", "-qm", "crlf")
			d.write("crlf=a\r\n")
		}, "", "main", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newRepository(t, ".gitignore=*.log\n", "a=1", "sub/b=1")
			tt.make(d)
			c := list(t, pack.Options{Dir: filepath.Join(d.path, tt.at)}).Commit
			require.Equal(t, pack.Commit{ID: d.git("rev-parse", "HEAD"), Branch: tt.branch, Dirty: tt.dirty}, *c)
			require.Equal(t, c, list(t, pack.Options{Dir: filepath.Join(d.path, tt.at), All: true}).Commit)
		})
	}
}

func TestCommitAndRemote(t *testing.T) {
	t.Parallel()
	d := newDir(t)
	needs.Git(t)
	d.git("init", "-q")
	d.write("a")
	c := list(t, pack.Options{Dir: d.path}).Commit
	require.Equal(t, pack.Commit{Branch: "main", Dirty: true}, *c, "before the first commit")
	remote := func() string { return list(t, pack.Options{Dir: d.path}).Commit.Remote }
	d.git("remote", "add", "fork", "https://example.com/fork")
	require.Equal(t, "https://example.com/fork", remote(), "the only one")
	d.git("remote", "add", "Mine.x", "https://example.com/mine")
	require.Empty(t, remote(), "which?")
	d.git("remote", "add", "origin", "https://example.com/origin")
	require.Equal(t, "https://example.com/origin", remote())
	d.git("config", "branch.main.remote", "Mine.x")
	require.Equal(t, "https://example.com/mine", remote(), "that of the branch")
	d.git("config", "branch.main.remote", ".")
	require.Equal(t, "https://example.com/origin", remote(), "a branch that follows another one here")
}

// A repository that somebody else made names programs that must not run.
func TestNoProgramOfTheRepositoryRuns(t *testing.T) {
	t.Parallel()
	d := newRepository(t, "a=1", "b=1", ".gitattributes=a filter=evil\n*.c filter=evil2\n")
	tools := newDir(t)
	monitor, ran1 := tools.script("monitor")
	clean, ran2 := tools.script("clean")
	hook, ran3 := tools.script("post-index-change")
	d.git("config", "core.fsmonitor", monitor)
	d.git("config", "filter.evil.clean", clean)
	d.git("config", "filter.evil.required", "true")
	d.git("config", "filter.evil2.process", clean)
	d.git("config", "core.hooksPath", filepath.Dir(hook))
	d.git("config", "core.pager", clean)
	d.write("a=2", "b=2", "x.c")
	require.Equal(t, []string{".gitattributes", "a", "b", "x.c"}, names(list(t, pack.Options{Dir: d.path})))
	require.NoFileExists(t, ran1)
	require.NoFileExists(t, ran2)
	require.NoFileExists(t, ran3)
	d.git("status")
	require.FileExists(t, ran1, "git itself runs it")
	require.FileExists(t, ran2)
}

// In a hook git has set GIT_DIR, GIT_INDEX_FILE and others, relative to the working tree.
func TestListInAHook(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	require.NoError(t, err)
	d := newRepository(t, ".gitignore=x\n", "a")
	other := newRepository(t, "b", "c")
	d.write("x", "new")
	seen := filepath.Join(t.TempDir(), "seen")
	hook := filepath.Join(d.path, ".git/hooks/pre-commit")
	require.NoError(t, os.MkdirAll(filepath.Dir(hook), 0o755))
	require.NoError(t, os.WriteFile(hook, []byte("#!/bin/sh\nenv | grep -c ^GIT_INDEX_FILE= >"+seen+"\n"+
		listed+"="+d.path+" "+program+" >>"+seen+"\n"+listed+"="+other.path+" "+program+" >>"+seen+"\n"), 0o755))
	d.write("a=2")
	d.git("commit", "-qam", "second")
	raw, err := os.ReadFile(seen)
	require.NoError(t, err)
	require.Equal(t, "1\n[.gitignore a new] main\n[b c] main\n", string(raw))

	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), listed+"="+d.path, "GIT_DIR="+other.path+"/.git", "GIT_WORK_TREE="+other.path, "GIT_INDEX_FILE=/nonexistent", "GIT_CEILING_DIRECTORIES="+d.path,
		"GIT_LITERAL_PATHSPECS=1", "GIT_CONFIG_PARAMETERS='core.bare=true'")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "[.gitignore a new] main\n", string(out))
}

func TestListWritesNothing(t *testing.T) {
	t.Parallel()
	d := newRepository(t, "a=1")
	d.write("a=1") // so that the index could be refreshed
	before, err := os.Stat(filepath.Join(d.path, ".git/index"))
	require.NoError(t, err)
	list(t, pack.Options{Dir: d.path})
	after, err := os.Stat(filepath.Join(d.path, ".git/index"))
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
	require.Equal(t, before.ModTime(), after.ModTime())
	require.Empty(t, d.git("status", "--porcelain"))
}
