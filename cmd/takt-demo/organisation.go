package main

import (
	"fmt"
	"strings"

	"takt/http/githubtest"
)

const (
	sourceOrg = "source-org"
	targetOrg = "target-org"
	token     = "token-of-the-demo"
	repos     = 50
	// clash is a name that the target uses for something else.
	clash = "repo-49"
)

// organisation fills the stand-in: fifty repositories with a history, branches
// and tags of their own; one is empty, and one's name is taken at the target.
func organisation(forge *githubtest.Server) error {
	forge.AddOrg(sourceOrg)
	forge.AddOrg(targetOrg)
	for i := range repos {
		name := fmt.Sprintf("repo-%02d", i)
		r, err := forge.Add(githubtest.Repo{
			Org: sourceOrg, Name: name, Description: fmt.Sprintf("The repository number %d of the demo", i),
			Visibility: []string{"private", "public", "internal"}[i%3], DefaultBranch: []string{"main", "develop"}[i/5%2],
		}, "")
		if err != nil {
			return err
		}
		if i == repos/2 {
			continue // the empty one
		}
		if err := githubtest.Import(forge.Dir(sourceOrg, name), history(r, 3+i%7)); err != nil {
			return err
		}
	}
	other, err := forge.Add(githubtest.Repo{Org: targetOrg, Name: clash}, "")
	if err != nil {
		return err
	}
	return githubtest.Import(forge.Dir(targetOrg, clash), history(other, 1))
}

// history is a stream for git fast-import: commits on the default branch, a tag
// for every second one, and two branches beside it.
func history(r githubtest.Repo, commits int) string {
	var b strings.Builder
	at := 1764000000
	file := func(path, content string) {
		fmt.Fprintf(&b, "M 100644 inline %s\ndata %d\n%s\n", path, len(content), content)
	}
	commit := func(ref, message, from string) {
		at += 60
		fmt.Fprintf(&b, "commit %s\ncommitter Demo <demo@example.org> %d +0000\ndata %d\n%s\n", ref, at, len(message), message)
		if from != "" {
			fmt.Fprintf(&b, "from %s\n", from)
		}
	}
	main := "refs/heads/" + r.DefaultBranch
	for i := range commits {
		commit(main, fmt.Sprintf("change %d of %s", i, r.Name), "")
		file("README.md", fmt.Sprintf("# %s\n\nchange %d\n", r.Name, i))
		file(fmt.Sprintf("src/part%d.txt", i), strings.Repeat(fmt.Sprintf("line of part %d\n", i), 40))
		if i%2 == 0 {
			fmt.Fprintf(&b, "reset refs/tags/v0.%d.0\nfrom %s\n\n", i, main)
		}
	}
	for _, branch := range []string{"feature/one", "fix-two"} {
		commit("refs/heads/"+branch, "begin "+branch, main)
		file("src/"+strings.ReplaceAll(branch, "/", "-")+".txt", branch+" of "+r.Name+"\n")
	}
	b.WriteString("done\n")
	return b.String()
}
