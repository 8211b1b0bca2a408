package house

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/apitest"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

// block is what a page shows as code: lines without their indentation.
type block struct {
	page, text string
}

var (
	indentedPattern = regexp.MustCompile(`(?m)^\n((?: {4,}\S.*\n|\n)+)`)
	fencedPattern   = regexp.MustCompile("(?ms)^ *```[a-z]*\n(.*?)^ *```$")
	inlinePattern   = regexp.MustCompile("`([^`\n]+)`")
	heredocPattern  = regexp.MustCompile(`(?ms)<<'EOF'\n(.*?)^EOF$`)
)

// unindented removes the indentation of the first line from all lines.
func unindented(text string) string {
	text = strings.Trim(text, "\n") + "\n"
	indent := text[:len(text)-len(strings.TrimLeft(text, " "))]
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(strings.TrimPrefix(line, indent))
	}
	return out.String()
}

// operators are the pages whose code is tested.
func operators(t *testing.T) map[string]string {
	t.Helper()
	pages := documents(t)
	maps.DeleteFunc(pages, func(page, _ string) bool {
		return strings.HasPrefix(page, "docs/evidence/") || strings.HasPrefix(page, "docs/reference/") ||
			page == "docs/design.md"
	})
	return pages
}

// blocks returns the code of a page.
func blocks(page, text string) (out []block) {
	for _, m := range fencedPattern.FindAllStringSubmatch(text, -1) {
		out = append(out, block{page, unindented(m[1])})
	}
	text = fencedPattern.ReplaceAllString(text, "")
	for _, m := range indentedPattern.FindAllStringSubmatch(text, -1) {
		out = append(out, block{page, unindented(m[1])})
	}
	return out
}

// manifests returns the YAML in a block: all of it, or what a command reads.
func (b block) manifests() (out []string) {
	if first := strings.TrimSpace(b.text); strings.HasPrefix(first, "apiVersion:") || strings.HasPrefix(first, "spec:") {
		out = append(out, b.text)
	}
	for _, m := range heredocPattern.FindAllStringSubmatch(b.text, -1) {
		out = append(out, m[1])
	}
	return out
}

// TestPagesManifests: the API server accepts each manifest of a page, and none has a field that it does not know.
func TestPagesManifests(t *testing.T) {
	kinds, err := apitest.Read()
	must(t, err)
	count := 0
	for page, text := range operators(t) {
		for _, b := range blocks(page, text) {
			for _, manifest := range b.manifests() {
				if count++; strings.HasPrefix(strings.TrimSpace(manifest), "spec:") {
					if !slices.ContainsFunc(kinds, func(c apitest.CRD) bool {
						return len(refusedBy(c,
							"apiVersion: holdfast.dev/v1beta1\nkind: "+c.Kind+"\nmetadata: {name: x}\n"+manifest)) == 0
					}) {
						t.Errorf("%s: no kind accepts\n%s", page, manifest)
					}
					continue
				}
				for _, problem := range refused(kinds, manifest) {
					t.Errorf("%s: %s, in\n%s", page, problem, manifest)
				}
			}
		}
	}
	if count < 3 {
		t.Errorf("found %d manifests", count)
	}
	reads(t, "../../config")
	for _, pattern := range []string{"../../config/samples/*.yaml", "../../config/kind/web.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, file := range files {
			for _, problem := range refused(kinds, read(t, file)) {
				t.Errorf("%s: %s", file, problem)
			}
		}
	}
}

// elsewhere are groups of objects that pages show, and that no schema here knows.
var elsewhere = regexp.MustCompile(`(?m)^apiVersion: (metallb\.io|frrk8s\.metallb\.io|monitoring\.coreos\.com|kind\.x-k8s\.io|` +
	`kustomize\.config\.k8s\.io|helm\.cattle\.io|kubeproxy\.config\.k8s\.io)/`)

// refused says why an API server would not accept the objects of a manifest.
func refused(kinds []apitest.CRD, manifest string) (out []string) {
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for part := range strings.SplitSeq("\n"+manifest, "\n---") {
		if strings.TrimSpace(part) == "" || elsewhere.MatchString(part) {
			continue
		}
		var o struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal([]byte(part), &o); err != nil {
			out = append(out, err.Error())
			continue
		}
		i := slices.IndexFunc(kinds,
			func(c apitest.CRD) bool { return c.Kind == o.Kind && o.APIVersion == "holdfast.dev/v1beta1" })
		if i >= 0 {
			out = append(out, refusedBy(kinds[i], part)...)
		} else if _, _, err := strict.Decode([]byte(part), nil, nil); err != nil {
			out = append(out, err.Error())
		}
	}
	return out
}

// refusedBy says why an object of ours would not be accepted.
func refusedBy(c apitest.CRD, manifest string) (out []string) {
	var o map[string]any
	if err := yaml.UnmarshalStrict([]byte(manifest), &o); err != nil {
		return []string{err.Error()}
	}
	body, err := json.Marshal(o)
	if err != nil {
		return []string{err.Error()}
	}
	if err := c.Check(body); err != nil {
		out = append(out, err.Error())
	}
	for _, field := range pruning.PruneWithOptions(o, c.Schema, true,
		schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}) {
		out = append(out, "unknown field "+field)
	}
	return out
}

// command is a command of a page, in words.
type command struct {
	page  string
	words []string
	// input is a script that a shell would run, for its syntax.
	script string
}

// programs are what begins a command that is recognised.
var programs = []string{
	"make", "helm", "kubectl", "kubectl-holdfast", "kind", "ctr", "docker", "skopeo", "sh", "nft", "curl", "go", "git",
	"sudo", "tcpdump", "modprobe", "cosign", "bin/kindlab", "bin/lab",
}

// commands returns the commands of all pages for operators and developers.
func commands(t *testing.T) (out []command) {
	t.Helper()
	for page, text := range operators(t) {
		var lines []string
		for _, b := range blocks(page, text) {
			body := heredocPattern.ReplaceAllString(b.text, "- ")
			if !strings.Contains(body, "$ ") {
				lines = append(lines, strings.Split(strings.ReplaceAll(body, "\\\n", " "), "\n")...)
				continue
			}
			for line := range strings.Lines(body) { // the rest is what they print
				if typed, isTyped := strings.CutPrefix(line, "$ "); isTyped {
					lines = append(lines, strings.TrimSpace(typed))
				}
			}
		}
		for _, m := range inlinePattern.FindAllStringSubmatch(fencedPattern.ReplaceAllString(text, ""), -1) {
			if first, rest, _ := strings.Cut(m[1], " "); rest != "" && first != "sh" && slices.Contains(programs, first) {
				lines = append(lines, strings.ReplaceAll(m[1], `\|`, "|"))
			}
		}
		for _, line := range lines {
			for _, words := range split(line) {
				if slices.Contains(programs, words[0]) {
					out = append(out, command{page, words, line})
				}
			}
		}
	}
	return out
}

// split splits a line of shell into commands and their words, as far as pages need it: quotes, comments, pipes, && and
// ;.
func split(line string) (out [][]string) {
	var words []string
	var word strings.Builder
	quote, started := rune(0), false
	end := func() {
		if started {
			words = append(words, word.String())
		}
		word.Reset()
		started = false
	}
	next := func() {
		if end(); len(words) > 0 {
			out = append(out, words)
		}
		words = nil
	}
	for _, c := range line {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, started = c, true
		case quote == 0 && c == '#' && !started:
			next()
			return out
		case quote == 0 && (c == ' ' || c == '\t'):
			end()
		case quote == 0 && strings.ContainsRune("|;&<>", c):
			next()
		default:
			word.WriteRune(c)
			started = true
		}
	}
	next()
	return out
}

// TestPagesCommands: what a page tells to type exists: targets of make, commands and flags of helm and of the plugin,
// values of the chart, kinds, files, annotations and tables.
func TestPagesCommands(t *testing.T) {
	makefile := read(t, "../../Makefile")
	plugin, resources, missing := buildPlugin(t), resources(t), missing(t)
	count, code := map[string]int{}, sources(t)
	for _, c := range commands(t) {
		count[c.words[0]]++
		wrong := func(format string, args ...any) {
			t.Helper()
			t.Errorf("%s: "+format+"\nin: %s", append(append([]any{c.page}, args...), c.script)...)
		}
		if out, err := exec.Command("sh", "-n", "-c", c.script).CombinedOutput(); err != nil {
			wrong("not a command: %s", out)
		}
		for _, word := range c.words {
			if why := missing(word); why != "" {
				wrong("%s %s", word, why)
			}
		}
		switch c.words[0] {
		case "make":
			for _, word := range c.words[1:] {
				name, _, isVariable := strings.Cut(word, "=")
				if isVariable && !strings.Contains(makefile, "("+name+")") || !isVariable && !strings.HasPrefix(word, "-") &&
					!regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(strings.TrimSuffix(word, "…"))+`[a-z-]*:`).MatchString(makefile) {
					wrong("the Makefile has no %s", word)
				}
			}
		case "nft":
			if table := c.words[len(c.words)-1]; !slices.ContainsFunc(slices.Collect(maps.Values(code)), func(text string) bool {
				return strings.Contains(text, strconv.Quote(table))
			}) {
				wrong("no code has a table %s", table)
			}
		case "helm":
			checkFlags(t, wrong, helm(t), c.words[1:])
			checkValues(t, wrong, c.words)
		case "kubectl-holdfast":
			checkFlags(t, wrong, plugin, c.words[1:])
		case "kubectl":
			if len(c.words) > 1 && c.words[1] == "holdfast" {
				checkFlags(t, wrong, plugin, c.words[2:])
				continue
			}
			checkKubectl(wrong, c.words, resources)
			if program, err := exec.LookPath("kubectl"); err == nil { // without it the flags stay unchecked
				checkFlags(t, wrong, program, c.words[1:])
			}
		}
	}
	if count["make"] < 20 || count["helm"] < 8 || count["kubectl"] < 30 {
		t.Errorf("found these commands only: %v", count)
	}
}

// ourObject is an object by its kind and name, and no image, chart or address.
var ourObject = regexp.MustCompile(`^[a-z]+/holdfast-`)

// missing returns a function that says why a word of a command, a file or a name of ours, does not exist.
func missing(t *testing.T) func(word string) string {
	t.Helper()
	annotations := constants(t)["Annotation"]
	installed := read(t, "../../config/default/holdfast.yaml") + read(t, "../../config/uninstall/uninstall.yaml")
	made := ""
	files, err := filepath.Glob("../../release/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, f := range files {
		made += read(t, f)
	}
	return func(word string) string {
		switch name := strings.TrimPrefix(word, "./"); {
		case strings.HasPrefix(name, "config/"):
			if _, err := os.Stat("../../" + name); err != nil {
				return "is not in the tree"
			}
		case strings.HasPrefix(name, "dist/"):
			// Of a name with a version the end, of another one the whole.
			if !strings.Contains(made, name[strings.LastIndexAny(name, "*/N")+1:]) {
				return "is nothing that a release has"
			}
		case strings.HasPrefix(name, "holdfast.dev/"):
			key, _, _ := strings.Cut(strings.TrimRight(name, "-"), "=")
			if _, known := annotations[key]; !known && key != "holdfast.dev/uninstall" {
				return "is no annotation"
			}
		case ourObject.MatchString(name):
			if _, object, _ := strings.Cut(name, "/"); !strings.Contains(installed, "name: "+object+"\n") {
				return "is installed nowhere"
			}
		}
		return ""
	}
}

// buildPlugin compiles the plugin.
func buildPlugin(t *testing.T) string {
	t.Helper()
	for _, tree := range []string{"../../kubectl-holdfast", "../../internal"} {
		reads(t, tree)
	}
	program := filepath.Join(t.TempDir(), "kubectl-holdfast")
	if out, err := exec.Command("go", "build", "-o", program, "../../kubectl-holdfast").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// helps are the texts of --help, by program and command; "" if there is no such command.
var helps = map[string]string{}

// help returns what a program says of a command of its own.
func help(t *testing.T, program string, sub []string) string {
	t.Helper()
	key := program + " " + strings.Join(sub, " ")
	if text, asked := helps[key]; asked {
		return text
	}
	text := ""
	// For a word that is no command the program prints the help of the command before it.
	if out, err := exec.Command(program, append(slices.Clone(sub), "--help")...).Output(); err == nil &&
		regexp.MustCompile(`Usage:\n\s+(\S+ )+?`+strings.Join(sub, " ")+`\b`).Match(out) {
		text = string(out)
	}
	if text != "" && filepath.Base(program) == "kubectl" {
		options, err := exec.Command(program, "options").Output()
		must(t, err)
		text += string(options)
	}
	helps[key] = text
	return text
}

// checkFlags checks a command and its flags by what its program says of itself.
func checkFlags(t *testing.T, wrong func(string, ...any), program string, words []string) {
	t.Helper()
	var sub []string
	for i := 0; i < len(words) && len(sub) < 3; i++ {
		if words[i] == "-n" || words[i] == "--namespace" {
			i++
		} else if !regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(words[i]) {
			break
		} else {
			sub = append(sub, words[i])
		}
	}
	text := ""
	for ; len(sub) > 0 && text == ""; sub = sub[:len(sub)-1] {
		text = help(t, program, sub)
	}
	if len(words) == 0 {
		return // a program by its name alone
	}
	if text == "" {
		wrong("no such command")
		return
	}
	for _, word := range words {
		flag, _, _ := strings.Cut(word, "=")
		known := regexp.MustCompile(`(^|[\s,])` + regexp.QuoteMeta(flag) + `([\s,=:]|$)`)
		if strings.HasPrefix(flag, "-") && flag != "-" && !known.MatchString(text) {
			wrong("no such flag: %s", flag)
		}
	}
}

// checkValues renders the chart with the values of a command.
func checkValues(t *testing.T, wrong func(string, ...any), words []string) {
	t.Helper()
	var set []string
	for i, word := range words {
		if (word == "--set" || word == "--set-json" || word == "--set-string") && i+1 < len(words) {
			set = append(set, word, words[i+1])
		}
	}
	if len(set) > 0 {
		if _, err := template(t, set...); err != nil {
			wrong("the chart refuses %v: %v", set, err)
		}
	}
}

// verbs of kubectl that take a resource.
var verbs = []string{
	"get", "describe", "delete", "annotate", "label", "patch", "wait", "edit", "explain", "rollout", "logs",
}

// resources are the names by which kubectl knows our kinds, and the kinds of Kubernetes that pages name.
func resources(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{"holdfast": true}
	for name := range strings.FieldsSeq("service services svc node nodes pod pods namespace secret secrets " +
		"deployment daemonset job lease leases events configmap endpointslices crd servicel2statuses") {
		out[name] = true
	}
	kinds, err := filepath.Glob("../../config/crd/holdfast.dev_*.yaml")
	must(t, err)
	for _, file := range kinds {
		var crd struct {
			Spec struct {
				Names struct {
					Plural, Singular string
					ShortNames       []string
				}
			}
		}
		must(t, yaml.Unmarshal([]byte(read(t, file)), &crd))
		for _, name := range append(crd.Spec.Names.ShortNames, crd.Spec.Names.Plural, crd.Spec.Names.Singular) {
			out[name] = true
		}
	}
	return out
}

// checkKubectl checks the kinds, the JSON and the JSONPath of a command.
func checkKubectl(wrong func(string, ...any), words []string, resources map[string]bool) {
	withValue := []string{"-n", "-o", "-f", "-p", "-l", "--namespace", "--type", "--selector"}
	var positional []string
	for i := 1; i < len(words); i++ {
		value, isFlag := "", strings.HasPrefix(words[i], "-")
		flag, _, joined := strings.Cut(words[i], "=")
		if isFlag && !joined && slices.Contains(withValue, flag) && i+1 < len(words) {
			i++
			value = words[i]
		}
		switch {
		case !isFlag:
			positional = append(positional, words[i])
		case flag == "-p" && !json.Valid([]byte(value)):
			wrong("%s is not JSON", value)
		case flag == "-o" && strings.HasPrefix(value, "jsonpath="):
			if err := jsonpath.New("").Parse(strings.TrimPrefix(value, "jsonpath=")); err != nil {
				wrong("%v", err)
			}
		}
	}
	if len(positional) < 2 || !slices.Contains(verbs, positional[0]) {
		return
	}
	if positional[0] == "rollout" {
		positional = positional[1:]
	}
	kind, _, _ := strings.Cut(positional[1], "/")
	for name := range strings.SplitSeq(kind, ",") {
		if name, _, _ = strings.Cut(name, "."); !resources[name] && positional[0] != "logs" && name != strings.ToUpper(name) {
			wrong("no resource is called %s", name)
		}
	}
}

// TestPagesQuotes: what docs/troubleshooting.md quotes is what the code says, and the Reasons that it names exist.
func TestPagesQuotes(t *testing.T) {
	page, literals := documents(t)["docs/troubleshooting.md"], ""
	for p, text := range sources(t) {
		file, err := parser.ParseFile(token.NewFileSet(), p, text, 0)
		must(t, err)
		for e := range nodes[*ast.BasicLit](file) {
			s, _ := literal(e)
			literals += s + "\n"
		}
	}
	quotes := regexp.MustCompile(`“([^”]+)”`).FindAllStringSubmatch(page, -1)
	for _, q := range quotes {
		if !strings.Contains(literals, q[1]) {
			t.Errorf("no code says %q", q[1])
		}
	}
	if len(quotes) < 10 {
		t.Errorf("found %d quotes", len(quotes))
	}
	conditions, known := constants(t)["Condition"], users(t)
	for _, m := range regexp.MustCompile("`([A-Z][a-z]+[A-Z][A-Za-z0-9]*)`").FindAllStringSubmatch(page, -1) {
		_, own := conditions["holdfast.dev/"+m[1]]
		if _, other := conditions[m[1]]; known[m[1]] == nil && !own && !other {
			t.Errorf("%s is neither a Reason nor a condition", m[1])
		}
	}
}

// ofOthers are names under holdfast.dev/ that are no annotations of users: the class, the finalizer, the version, and
// what is on a DaemonSet.
var ofOthers = []string{"lb", "address", "v", "uninstall", "announced-by"}

// TestPagesNames: annotations and values of the chart that pages name exist.
func TestPagesNames(t *testing.T) {
	annotations, values := constants(t)["Annotation"], map[string]any{}
	must(t, yaml.Unmarshal([]byte(read(t, chart+"/values.yaml")), &values))
	own := regexp.MustCompile(`holdfast\.dev/([a-z][a-z-]*[a-z]|v)`)
	value := regexp.MustCompile("`(?:--set )?([a-z][A-Za-z]*(?:\\.[a-z][A-Za-z]*)+)(?:[=:]|`)")
	found := 0
	for page, text := range documents(t) {
		for _, m := range own.FindAllStringSubmatch(text, -1) {
			if _, known := annotations[m[0]]; !known && !slices.Contains(ofOthers, m[1]) {
				t.Errorf("%s names %s, which no code reads", page, m[0])
			}
		}
		for _, m := range value.FindAllStringSubmatch(text, -1) {
			parts := strings.Split(m[1], ".")
			below, isValue := values[parts[0]].(map[string]any)
			if !isValue {
				continue // a field, a file, a program
			}
			found++
			for _, part := range parts[1:] {
				next, known := below[part]
				if !known && below != nil && len(below) > 0 {
					t.Errorf("%s names the value %s, which the chart does not have", page, m[1])
					break
				}
				below, _ = next.(map[string]any)
			}
		}
	}
	if found < 20 {
		t.Errorf("found %d values", found)
	}
}

// TestPagesCanFail: what is wrong on a page is found.
func TestPagesCanFail(t *testing.T) {
	kinds, err := apitest.Read()
	must(t, err)
	const pool = "apiVersion: holdfast.dev/v1beta1\nkind: IPAddressPool\nmetadata: {name: x}\nspec: {addresses: [%s]%s}\n"
	for name, manifest := range map[string]string{
		"an address": strings.Replace(strings.Replace(pool, "%s", "nonsense", 1), "%s", "", 1),
		"a field":    strings.Replace(strings.Replace(pool, "%s", "192.0.2.1", 1), "%s", ", autoAsign: true", 1),
		"a field below": strings.Replace(strings.Replace(pool, "%s", "192.0.2.1", 1), "%s",
			", quota: {perNamespace: {v4: 1}}", 1),
		"a Service": "apiVersion: v1\nkind: Service\nspec: {port: 80}\n",
		"a kind":    "apiVersion: holdfast.dev/v1beta1\nkind: Pool\nspec: {}\n",
	} {
		if len(refused(kinds, manifest)) == 0 {
			t.Errorf("%s: nothing is found in\n%s", name, manifest)
		}
	}
	page := "Text:\n\n    kubectl apply -f - <<'EOF'\n    a: b\n    EOF\n    $HOME/x # y\n\nMore:\n\n" +
		"    $ kubectl get a 'b c' | helm x # y\n    kubectl\n"
	found := blocks("x", page)
	if len(found) != 2 || len(found[0].manifests()) != 1 || found[0].manifests()[0] != "a: b\n" {
		t.Errorf("found %q", found)
	}
	got := split(`kubectl get a 'b c' "d" | helm x --y="z" # w`)
	if len(got) != 2 || len(got[0]) != 5 || got[0][3] != "b c" || got[1][2] != "--y=z" {
		t.Errorf("split into %q", got)
	}
	var log bytes.Buffer
	wrong := func(format string, _ ...any) { log.WriteString(format + "\n") }
	checkKubectl(wrong, split(`kubectl -n x get pools`)[0], resources(t))
	checkKubectl(wrong, split(`kubectl patch service web -p '{"a":}'`)[0], resources(t))
	checkKubectl(wrong, split(`kubectl get service web -o jsonpath='{.a'`)[0], resources(t))
	checkFlags(t, wrong, helm(t), []string{"install", "x", "--creates-namespace"})
	checkFlags(t, wrong, helm(t), []string{"instal", "x"})
	checkValues(t, wrong, []string{"--set", "no.such=1"})
	if n := strings.Count(log.String(), "\n"); n != 6 {
		t.Errorf("found %d faults of 6:\n%s", n, &log)
	}
	for _, word := range []string{"config/samples/no.yaml", "dist/no.yaml", "holdfast.dev/no=1", "daemonset/holdfast-no"} {
		if missing(t)(word) == "" {
			t.Errorf("%s is not missed", word)
		}
	}
}
