package house

import (
	"cmp"
	"encoding/json"
	"fmt"
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

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestReference: docs/reference is made of the code that it is about, so that it lacks nothing and is never wrong.
// `make generate` writes it.
func TestReference(t *testing.T) {
	for page, text := range map[string]string{
		"api.md": apiReference(t), "kernel.md": kernelReference(t), "metrics.md": metricsReference(t),
		"names.md":    namesReference(t),
		"packages.md": packagesReference(t), "reasons.md": reasonsReference(t),
		"values.md": valuesReference(t),
	} {
		golden(t, "../../docs/reference/"+page, "<!-- Written by make generate. -->\n\n"+text)
	}
	golden(t, chart+"/README.md",
		"<!-- Written by make generate. -->\n\n"+chartReadme+strings.ReplaceAll(valuesReference(t), "# Values", "## Values"))
	golden(t, chart+"/values.schema.json", describedSchema(t))
}

const chartReadme = `# holdfast

Holdfast is a load balancer for bare-metal Kubernetes; external addresses for Services by ARP, NDP and BGP.

    helm install holdfast holdfast-VERSION.tgz --namespace holdfast-system --create-namespace --wait

https://github.com/holdfast-lb/holdfast has its pages.

`

// cell is a text as a cell of a table has it: on one line.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

// apiReference has the fields of the custom resources.
func apiReference(t *testing.T) string {
	out := "# Custom resources\n\nThe fields of group `holdfast.dev`, version `v1beta1`. `kubectl explain KIND.spec` " +
		"shows the same, and `kubectl get holdfast` lists " +
		"the objects of all kinds.\n"
	short := map[string]string{}
	files, err := filepath.Glob("../../config/crd/holdfast.dev_*.yaml")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d definitions: %v", len(files), err)
	}
	for _, file := range files {
		var crd apiextensionsv1.CustomResourceDefinition
		must(t, yaml.Unmarshal([]byte(read(t, file)), &crd))
		schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		names, scope := crd.Spec.Names, "belongs to the cluster"
		if crd.Spec.Scope == apiextensionsv1.NamespaceScoped {
			scope = "belongs to a namespace"
		}
		differs := len(names.ShortNames) != 1 || !slices.Equal(names.Categories, []string{"holdfast"}) ||
			short[names.ShortNames[0]] != ""
		if differs {
			t.Fatalf("%s has the short names %q and the categories %q: one name of its own, and the category holdfast",
				names.Kind, names.ShortNames, names.Categories)
		}
		short[names.ShortNames[0]] = names.Kind
		out += fmt.Sprintf("\n## %s\n\n%s `kubectl get %s`, or `%s`; it %s.\n", names.Kind, cell(schema.Description),
			names.Plural, names.ShortNames[0], scope)
		if all := refusals(schema); len(all) > 0 {
			out += "\nThe API server refuses an object that breaks a rule:\n\n- " + strings.Join(all, "\n- ") + "\n"
		}
		out += "\n| field | type | default | meaning |\n|---|---|---|---|\n" + fields(t, "spec", schema.Properties["spec"]) +
			fields(t, "status", schema.Properties["status"])
	}
	return out
}

// refusals are the sentences of the rules of a schema and of all below it.
func refusals(schema *apiextensionsv1.JSONSchemaProps) (out []string) {
	for _, r := range schema.XValidations {
		out = append(out, cell(r.Message))
	}
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		if below := schema.Properties[name]; name != "status" {
			out = append(out, refusals(&below)...)
		}
	}
	return out
}

// fields are the rows of all fields below a path.
func fields(t *testing.T, path string, schema apiextensionsv1.JSONSchemaProps) string {
	out := ""
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		field, below := schema.Properties[name], path+"."+name
		if name == "conditions" || name == "matchLabels" || name == "matchExpressions" {
			continue
		}
		kind, inner := field.Type, field
		if field.Items != nil && field.Items.Schema != nil {
			inner = *field.Items.Schema
			kind, below = "list of "+inner.Type, below+"[]"
		} else if field.AdditionalProperties != nil {
			kind = "map"
		}
		for _, v := range field.Enum {
			kind += " " + string(v.Raw)
		}
		if field.Minimum != nil && field.Maximum != nil {
			kind += fmt.Sprintf(", %.0f to %.0f", *field.Minimum, *field.Maximum)
		}
		if field.MaxItems != nil {
			kind += fmt.Sprintf(", at most %d", *field.MaxItems)
		}
		if slices.Contains(schema.Required, name) {
			kind += ", required"
		}
		initial := ""
		if field.Description == "" {
			t.Errorf("%s.%s has no comment", path, name)
		}
		if field.Default != nil {
			initial = "`" + string(field.Default.Raw) + "`"
		}
		out += fmt.Sprintf("| `%s.%s` | %s | %s | %s |\n", path, name, cell(kind), initial, cell(field.Description)) +
			fields(t, below, inner)
	}
	return out
}

// value is a value of the chart with its comment.
type value struct {
	path, comment string
	// initial is nil for a map of values.
	initial any
}

// valuesReference has the values of the chart with their comments.
func valuesReference(t *testing.T) string {
	out := "# Values of the chart\n\nUnknown values are refused by `values.schema.json`. Custom resources set " +
		"everything else.\n\n| value | default | meaning |\n|---|---|---|\n"
	for _, v := range chartValues(t) {
		initial := ""
		if v.initial != nil {
			raw, err := json.Marshal(v.initial)
			must(t, err)
			initial = "`" + string(raw) + "`"
		}
		if v.comment != "" {
			out += fmt.Sprintf("| `%s` | %s | %s |\n", v.path, cell(initial), cell(v.comment))
		} else if v.initial != nil {
			t.Errorf("the value %s has no comment", v.path)
		}
	}
	return out
}

// describedSchema returns the schema of the values with their comments as descriptions.
func describedSchema(t *testing.T) string {
	var schema map[string]any
	must(t, json.Unmarshal([]byte(read(t, chart+"/values.schema.json")), &schema))
	for _, v := range chartValues(t) {
		at := schema
		for name := range strings.SplitSeq(v.path, ".") {
			properties, _ := at["properties"].(map[string]any)
			if at, _ = properties[name].(map[string]any); at == nil {
				t.Fatalf("values.schema.json lacks %s", v.path)
			}
		}
		if v.comment != "" {
			at["description"] = strings.Join(strings.Fields(v.comment), " ")
		}
	}
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	must(t, encoder.Encode(schema))
	return out.String()
}

// chartValues returns all values in their order, maps of values ahead of what is in them.
func chartValues(t *testing.T) (out []value) {
	text := read(t, chart+"/values.yaml")
	var values map[string]any
	must(t, yaml.Unmarshal([]byte(text), &values))
	initial := map[string]any{}
	leaves("", values, initial)
	var path []string
	comment, shown := "", 0
	for line := range strings.Lines(text) {
		name, _, isKey := strings.Cut(strings.TrimSpace(line), ":")
		switch depth := (len(line) - len(strings.TrimLeft(line, " "))) / 2; {
		case strings.HasPrefix(name, "#"):
			comment += strings.TrimPrefix(strings.TrimSpace(line), "#")
		case !isKey || strings.HasPrefix(name, "-"):
			comment = ""
		default:
			path = append(path[:min(depth, len(path))], name)
			key := strings.Join(path, ".")
			first, isLeaf := initial[key]
			if isLeaf {
				shown++
			}
			if isLeaf || comment != "" {
				out = append(out, value{key, comment, first})
			}
			comment = ""
		}
	}
	if shown != len(initial) {
		t.Errorf("the page shows %d values of %d: is values.yaml indented by two spaces?", shown, len(initial))
	}
	return out
}

// wholeValues are maps that a page shows as one value.
var wholeValues = []string{"resources", "podSecurityContext", "securityContext"}

// leaves adds all values that are not maps of values to out, by their paths.
func leaves(prefix string, values, out map[string]any) {
	for key, v := range values {
		if m, ok := v.(map[string]any); ok && len(m) > 0 && !slices.Contains(wholeValues, key) {
			leaves(prefix+key+".", m, out)
		} else {
			out[prefix+key] = v
		}
	}
}

// reasonsReference has every Reason: its comment, and where it stands and what to do by lb/reasons.yaml.
func reasonsReference(t *testing.T) string {
	var advice map[string]struct {
		In []string `json:"in"`
		Do string   `json:"do"`
	}
	must(t, yaml.UnmarshalStrict([]byte(read(t, "../lb/reasons.yaml")), &advice))
	file, err := parser.ParseFile(token.NewFileSet(), "../../internal/lb/reason.go", nil, parser.ParseComments)
	must(t, err)
	out := "# Reasons\n\nOne word, the same in condition, Event, log line and metric label. The message beside it " +
		"names the object and what to do. " +
		"A condition that changes is an Event with its reason too, on the same object. `kubectl holdfast why` shows " +
		"where a Service is concerned.\n"
	conditions, users := constants(t)["Condition"], users(t)
	for _, d := range file.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		heading, _, _ := strings.Cut(strings.TrimSuffix(cell(group.Doc.Text()), "."), " (")
		out += "\n## " + heading + "\n\n| reason | meaning | where | what to do |\n|---|---|---|---|\n"
		for _, s := range group.Specs {
			reason := s.(*ast.ValueSpec)
			name := reason.Names[0].Name
			// a short one is beside it
			meaning := strings.TrimPrefix(cell(reason.Doc.Text()), name+": ") + cell(reason.Comment.Text())
			of := advice[name]
			delete(advice, name)
			remedy, plain := lb.Reason(name).Remedy(), strings.TrimPrefix(of.Do, "nothing")
			if hasLink := strings.Contains(plain, "]("); hasLink == (remedy == plain) || strings.Contains(remedy, "](") {
				t.Errorf("Remedy says %q of %s, and lb/reasons.yaml %q", remedy, name, of.Do)
			}
			if meaning == "" || of.Do == "" || len(of.In) == 0 {
				t.Errorf("Reason %s needs a comment that says what it means, and in lb/reasons.yaml where it stands "+
					"and what to do", name)
				continue
			}
			out += fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, meaning,
				strings.Join(places(t, name, of.In, users[name], conditions), ", "), cell(of.Do))
		}
	}
	for name := range advice {
		t.Errorf("lb/reasons.yaml has %s, which is no Reason", name)
	}
	if len(users) < 80 {
		t.Errorf("the code uses %d Reasons", len(users))
	}
	pods := regexp.MustCompile(`PodWithdrawn = "(\w+)"`).FindStringSubmatch(read(t, "../../internal/k8s/endpoints.go"))
	if pods == nil {
		t.Fatal("no reason for pods is found")
	}
	return out + "\n## Reason of the condition Ready of pods\n\n`" + pods[1] + "`: the pod is on a node that most " +
		"speakers cannot reach ([endpoints on a dead node](../layer2.md#endpoints-on-a-dead-node)).\n"
}

// producers are the files, by the begin of their paths, that put a Reason into a place.
var producers = map[string][]string{
	"AddressAssigned": {
		"internal/ipam/", "internal/config/", "internal/openstack/", "controller/clear.go", "controller/desired.go",
		"controller/service.go",
	},
	"AnnotationsHonoured": {
		"internal/config/", "controller/desired.go", "controller/floatingip.go", "controller/proxied.go",
	},
	"Proxied": {"controller/proxied.go"},
	"Written": {"internal/k8s/refused.go"},
	"Egress":  {"internal/config/egress.go", "controller/egress.go"},
	"Filtered": {"internal/config/access.go", "internal/config/bounds.go", "internal/config/sliceports.go",
		"controller/filtered.go", "controller/unfiltered.go"},
	"FilterEnforced":     {"internal/report/conditions.go"},
	"AnnouncedL2":        {"internal/plan/"},
	"AnnouncedBGP":       {"internal/plan/"},
	"Nodes":              {"internal/plan/"},
	"Valid":              {"internal/config/", "internal/ipam/", "controller/objects.go", "controller/pool.go"},
	"Established":        {"controller/sessions.go"},
	"AddressesFree":      {"controller/conflicts.go"},
	"EndpointsWithdrawn": {"internal/nodelifecycle/"},
	"Problems":           {"internal/node/", "internal/kernel/", "internal/liveness/"},
	"Event":              {"controller/", "internal/report/", "internal/nodelifecycle/"},
}

// places are the names of places for the page. Each must have a producer among the files that use the Reason, and each
// file that serves a single purpose a place.
func places(t *testing.T, reason string, in, files []string, conditions map[string]string) (out []string) {
	t.Helper()
	from := func(place string) bool {
		return slices.ContainsFunc(files, func(f string) bool {
			return slices.ContainsFunc(producers[place], func(p string) bool { return strings.HasPrefix(f, p) })
		})
	}
	for _, place := range in {
		kind, object, _ := strings.Cut(place, " ")
		if !from(kind) {
			t.Errorf("lb/reasons.yaml puts %s into %s, but no file uses it there; it is used in %v", reason, place, files)
		}
		switch _, own := conditions["holdfast.dev/"+kind]; {
		case kind == "Event":
			out = append(out, "Event of a "+object)
		case kind == "Problems":
			out = append(out, "`status.problems` of a SpeakerState, `holdfast_problems`")
		case kind == "Nodes":
			out = append(out, "what messages and `why` say of a node")
		case own:
			out = append(out, "`holdfast.dev/"+kind+"`")
		case conditions[kind] != "":
			out = append(out, "`"+kind+"`")
		default:
			t.Errorf("lb/reasons.yaml puts %s into %s, which is no condition", reason, place)
		}
	}
	has := func(all ...string) bool {
		return slices.ContainsFunc(all, func(p string) bool {
			return slices.ContainsFunc(in, func(i string) bool { return strings.HasPrefix(i, p) })
		})
	}
	if from("AnnouncedL2") && !has("Announced", "Nodes") || from("Established") && !has("Established") ||
		from("EndpointsWithdrawn") && !has("EndpointsWithdrawn", "Event") || from("AddressesFree") && !has("AddressesFree") ||
		slices.Contains(files, "problems") != has("Problems") {
		t.Errorf("lb/reasons.yaml puts %s into %v, but it is used in %v", reason, in, files)
	}
	return out
}

// users are the files that use each Reason, and "problems" for those that a node can have.
func users(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	all := sources(t)
	for _, p := range slices.Sorted(maps.Keys(all)) {
		name := strings.TrimPrefix(p, "../../")
		if strings.HasPrefix(name, "internal/lb/") || strings.HasPrefix(name, "kubectl-holdfast/") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), p, all[p], 0)
		must(t, err)
		add := func(n ast.Node, where string) {
			ast.Inspect(n, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && fmt.Sprint(s.X) == "lb" && !slices.Contains(out[s.Sel.Name], where) {
					out[s.Sel.Name] = append(out[s.Sel.Name], where)
				}
				return true
			})
		}
		for spec := range nodes[*ast.ValueSpec](file) {
			if spec.Names[0].Name == "nodeReasons" && len(spec.Values) == 1 {
				add(spec.Values[0].(*ast.CompositeLit), "problems")
				spec.Values = nil
			}
		}
		add(file, name)
	}
	delete(out, "Reason")
	return out
}

// constants are the names of annotations and conditions, and what is read of MetalLB, with their comments.
func constants(t *testing.T) map[string]map[string]string {
	t.Helper()
	out := map[string]map[string]string{"Annotation": {}, "Condition": {}, "MetalLB": {}}
	for p, text := range sources(t) {
		file, err := parser.ParseFile(token.NewFileSet(), p, text, parser.ParseComments)
		must(t, err)
		for group := range nodes[*ast.GenDecl](file) {
			for _, s := range group.Specs {
				spec, ok := s.(*ast.ValueSpec)
				if !ok || group.Tok != token.CONST || spec.Type != nil || len(spec.Values) != 1 {
					continue
				}
				kind := regexp.MustCompile("^(Annotation|Condition|MetalLB)[A-Z]").FindString(spec.Names[0].Name)
				value, ok := literal(spec.Values[0])
				if kind == "" || !ok {
					continue
				}
				doc := spec.Doc
				if doc == nil {
					doc = group.Doc
				}
				out[kind[:len(kind)-1]][value] = strings.TrimPrefix(cell(doc.Text()), spec.Names[0].Name+" ")
			}
		}
	}
	return out
}

// namesReference has the annotations, which users write, and the conditions, which they read, with their comments.
func namesReference(t *testing.T) string {
	all := constants(t)
	table := func(rows map[string]string, atLeast int) (out string) {
		if len(rows) < atLeast {
			t.Errorf("found %d names: %v", len(rows), rows)
		}
		for _, name := range slices.Sorted(maps.Keys(rows)) {
			out += fmt.Sprintf("| `%s` | %s |\n", name, rows[name])
		}
		return "\n| name | meaning |\n|---|---|\n" + out
	}
	// The comments name the constants of our own annotations.
	for name, meaning := range all["MetalLB"] {
		constants := regexp.MustCompile(`Annotation[A-Za-z]+`)
		all["MetalLB"][name] = constants.ReplaceAllStringFunc(meaning, func(constant string) string {
			for _, own := range slices.Sorted(maps.Keys(all["Annotation"])) {
				words := strings.ReplaceAll(strings.TrimPrefix(own, "holdfast.dev/"), "-", "")
				if strings.EqualFold("Annotation"+words, constant) {
					return "`" + own + "`"
				}
			}
			return constant
		})
	}
	return "# Annotations and conditions\n\n## Annotations\n" + table(all["Annotation"], 16) +
		"\n## Annotations of MetalLB\n\nThey are read where ours is absent.\n" + table(all["MetalLB"], 6) +
		"\n## Annotations of OpenStack\n\nThe annotations of OpenStack's cloud controller manager. " +
		"`AnnotationsHonoured` reports what has no effect on a Service. " +
		"`ignoreOpenStackAnnotations` of the chart leaves all unread.\n" + openStackReference(t) +
		"\n## Annotation of Kubernetes\n\n`" + corev1.AnnotationLoadBalancerSourceRangesKey + "` is read where " +
		"`spec.loadBalancerSourceRanges` is empty.\n\n## Conditions\n" + table(all["Condition"], 12)
}

// openStackReference has the annotations of OpenStack one by one, by the comments and the values of the table that the
// code reads.
func openStackReference(t *testing.T) string {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "../../internal/openstack/openstack.go", nil, parser.ParseComments)
	must(t, err)
	beside, above := map[int]string{}, map[int]string{}
	for _, c := range file.Comments {
		if pos := set.Position(c.Pos()); pos.Column > 2 {
			beside[pos.Line] = cell(c.Text())
		} else {
			above[set.Position(c.End()).Line+1] = cell(c.Text())
		}
	}
	texts := map[string]string{}
	for spec := range nodes[*ast.ValueSpec](file) {
		if len(spec.Names) == 1 && len(spec.Values) == 1 {
			if name := spec.Names[0].Name; name == "onlyAppliance" {
				texts[name], _ = literal(spec.Values[0])
			}
		}
	}
	rows := map[string]string{"service.beta.kubernetes.io/openstack-internal-load-balancer": "does | chooses pools " +
		"of scope Internal, as `holdfast.dev/internal` does."}
	for spec := range nodes[*ast.ValueSpec](file) {
		if spec.Names[0].Name != "known" {
			continue
		}
		for _, e := range spec.Values[0].(*ast.CompositeLit).Elts {
			entry := e.(*ast.KeyValueExpr)
			name, _ := literal(entry.Key)
			name = "loadbalancer.openstack.org/" + name
			why := reasonText(entry.Value, texts)
			line := set.Position(entry.Pos()).Line
			meaning := cmp.Or(beside[line], above[line])
			switch partly, isPartly := strings.CutPrefix(meaning, "partly: "); {
			case (why == "") == (meaning == ""):
				t.Errorf("%s needs either a reason why it has no effect or a comment with its effect", name)
			case why != "":
				rows[name] = "nothing | " + why + "."
			case isPartly:
				rows[name] = "partly | " + partly
			default:
				rows[name] = "does | " + meaning
			}
		}
	}
	if len(rows) < 31 {
		t.Errorf("found %d annotations of OpenStack", len(rows))
	}
	out := "\n| name | here | what, or why not |\n|---|---|---|\n"
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		out += fmt.Sprintf("| `%s` | %s |\n", name, rows[name])
	}
	return out
}

// reasonText is a literal, a constant of these texts, or a sum of both.
func reasonText(e ast.Expr, texts map[string]string) string {
	switch e := e.(type) {
	case *ast.Ident:
		return texts[e.Name]
	case *ast.BinaryExpr:
		return reasonText(e.X, texts) + reasonText(e.Y, texts)
	}
	text, _ := literal(e)
	return text
}

// packagesReference has the packages that are shipped or that tests stand on, by their comments.
func packagesReference(t *testing.T) string {
	for _, tree := range []string{"controller", "internal", "kubectl-holdfast", "release", "speaker"} {
		reads(t, "../../"+tree)
	}
	cmd := exec.Command("go", "list", "-f", "{{.ImportPath}}\t{{.Doc}}", module+"/controller", module+"/internal/...",
		module+"/kubectl-holdfast", module+"/release/...", module+"/speaker/...")
	cmd.Stderr = t.Output()
	list, err := cmd.Output()
	must(t, err)
	out := "# Packages\n\n`go doc ./internal/…` shows the whole comment of each.\n\n| package | it |\n|---|---|\n"
	for line := range strings.Lines(string(list)) {
		name, comment, _ := strings.Cut(strings.TrimSpace(line), "\t")
		switch name = path(name); {
		case name == "internal/house": // it has tests only
		case comment == "":
			t.Errorf("package %s has no comment", name)
		default:
			out += fmt.Sprintf("| `%s` | %s |\n", name,
				cell(regexp.MustCompile(`^(Package|Command) \S+ `).ReplaceAllString(comment, "")))
		}
	}
	return out
}

// kernelReference has what Holdfast needs of the kernel, and what each lack costs.
func kernelReference(t *testing.T) string {
	file, err := parser.ParseFile(token.NewFileSet(), "../../internal/kernel/feature.go", nil, 0)
	must(t, err)
	entries := func(list ast.Expr) map[string]ast.Expr {
		out := map[string]ast.Expr{}
		for _, e := range list.(*ast.CompositeLit).Elts {
			entry := e.(*ast.KeyValueExpr)
			key, isText := literal(entry.Key)
			if !isText {
				key = fmt.Sprint(entry.Key)
			}
			out[key] = entry.Value
		}
		return out
	}
	text := func(e ast.Expr) string {
		s, _ := literal(e)
		return s
	}
	features, kernel := []string{}, ""
	for spec := range nodes[*ast.ValueSpec](file) {
		switch spec.Names[0].Name {
		case "features":
			for _, about := range entries(spec.Values[0]) {
				f := entries(about)
				features = append(features,
					fmt.Sprintf("| %s | %s | %s | %s |\n", text(f["name"]), text(f["capability"]), text(f["modules"]),
						text(f["without"])))
			}
		case "minKernel":
			kernel = text(spec.Values[0])
		}
	}
	if len(features) < 9 || kernel == "" {
		t.Errorf("found %d features and kernel %q", len(features), kernel)
	}
	slices.Sort(features)
	return "# What Holdfast needs of the kernel\n\nLinux " + kernel +
		" and newer has all of it; distributions may leave modules out. A speaker tries each feature, and names in " +
		"`KernelFeatureMissing` what its kernel lacks.\n\n| feature | capability | needs | without it |\n" +
		"|---|---|---|---|\n" +
		strings.Join(features, "")
}

// metric is a metric as the code describes it.
type metric struct {
	name, help string
	labels     []string
}

// metricsReference has all metrics of both daemons.
func metricsReference(t *testing.T) string {
	out := "# Metrics\n\nBoth daemons serve them on port 9217 at `/metrics`.\n\n| metric | labels | meaning |\n" +
		"|---|---|---|\n"
	for _, m := range metrics(t) {
		out += fmt.Sprintf("| `%s` | %s | %s |\n", m.name, strings.Join(m.labels, ", "), cell(m.help))
	}
	return out
}

var wholeName, restOfName = regexp.MustCompile(`^holdfast_[a-z0-9_]+$`), regexp.MustCompile(`^[a-z0-9_]+$`)

// metrics returns all metrics that the code describes, by name.
func metrics(t *testing.T) []metric {
	t.Helper()
	found := map[string]metric{}
	files := sources(t)
	for _, p := range slices.Sorted(maps.Keys(files)) {
		text := files[p]
		if !strings.Contains(text, "client_golang/prometheus") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), p, text, 0)
		must(t, err)
		for _, m := range described(file) {
			m.labels = slices.Compact(slices.Sorted(slices.Values(append(m.labels, found[m.name].labels...))))
			found[m.name] = m
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b metric) int { return cmp.Compare(a.name, b.name) })
}

// described returns the metrics of a file: of NewDesc with a whole name, of Opts, and of the calls to a function of the
// file that puts "holdfast_…_" before the name.
func described(file *ast.File) []metric {
	var prefix string
	var fixed []string
	for call := range nodes[*ast.CallExpr](file) {
		if sum, ok := argument(call, 0).(*ast.BinaryExpr); ok {
			if p, _ := literal(sum.X); strings.HasPrefix(p, "holdfast_") && strings.HasSuffix(p, "_") {
				prefix, fixed = p, labels(call)
			}
		}
	}
	var out []metric
	for call := range nodes[*ast.CallExpr](file) {
		name, named := literal(argument(call, 0))
		help, _ := literal(argument(call, 1))
		var constant []string
		if opts, ok := argument(call, 0).(*ast.CompositeLit); ok {
			for _, e := range opts.Elts {
				kv, ok := e.(*ast.KeyValueExpr)
				if !ok {
					break
				}
				switch fmt.Sprint(kv.Key) {
				case "Name":
					name, named = literal(kv.Value)
				case "Help":
					help, _ = literal(kv.Value)
				case "ConstLabels":
					if list, ok := kv.Value.(*ast.CompositeLit); ok {
						constant = stringsOf(list)
					}
				}
			}
		}
		switch {
		case named && wholeName.MatchString(name) && help != "":
			out = append(out, metric{name, help, append(constant, labels(call)...)})
		case named && prefix != "" && restOfName.MatchString(name) && help != "" && strings.ToUpper(help[:1]) == help[:1]:
			out = append(out, metric{prefix + name, help, append(slices.Clone(fixed), labels(call)...)})
		}
	}
	return out
}

// nodes yields the nodes of a type.
func nodes[N ast.Node](file *ast.File) func(func(N) bool) {
	return func(yield func(N) bool) {
		for n := range ast.Preorder(file) {
			if n, ok := n.(N); ok && !yield(n) {
				return
			}
		}
	}
}

func argument(call *ast.CallExpr, i int) ast.Expr {
	if i >= len(call.Args) {
		return nil
	}
	return call.Args[i]
}

// literal returns the value of a string, and of a sum of strings.
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		return s, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		x, ok := literal(e.X)
		y, also := literal(e.Y)
		return x + y, ok && also
	}
	return "", false
}

// labels are the strings behind name and help, alone, in lists and as keys.
func labels(call *ast.CallExpr) []string {
	var out []string
	for i, arg := range call.Args {
		if list, ok := arg.(*ast.CompositeLit); ok && i > 0 {
			out = append(out, stringsOf(list)...)
		} else if s, ok := literal(arg); ok && i > 1 {
			out = append(out, s)
		}
	}
	return out
}

// stringsOf are the strings of a list, or the keys of a map.
func stringsOf(list *ast.CompositeLit) (out []string) {
	for _, e := range list.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			e = kv.Key
		}
		if s, ok := literal(e); ok {
			out = append(out, s)
		}
	}
	return out
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	return string(text)
}
