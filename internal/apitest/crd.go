// Package apitest validates Holdfast's objects like the API server of the oldest Kubernetes that Holdfast supports. It
// uses the schemas and rules in config/crd, and no running server.
//
//	patched, err := apitest.Patched(t, object, patch)   // fails the test if the result is invalid
//
// The package is for tests only; nothing that is shipped may import it.
package apitest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	schemacel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// CRD is one of Holdfast's kinds, with its validation.
type CRD struct {
	Group     string
	Kind      string
	Schema    *structuralschema.Structural
	validator validation.SchemaValidator
	rules     *schemacel.Validator
}

// Oldest is the oldest Kubernetes that Holdfast supports. Before 1.36 the API server enforces no format of numbers.
const Oldest = "1.31.0"

// Read returns all of Holdfast's kinds. It reads them once, because that takes long. Tests run in the directory of
// their package, which is inside the repository.
var Read = sync.OnceValues(func() (out []CRD, err error) {
	var files []string
	for dir := "."; len(files) == 0 && len(dir) < 64; dir = filepath.Join("..", dir) {
		// The pattern is well-formed.
		files, _ = filepath.Glob(filepath.Join(dir, "config", "crd", "holdfast.dev_*.yaml"))
	}

	if len(files) == 0 {
		return nil, errors.New("no CRDs")
	}

	for _, file := range files {
		c, err := read(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}

		out = append(out, c)
	}

	return out, nil
})

// read reads a kind from a file.
func read(file string) (CRD, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return CRD{}, err
	}

	var v1 apiextensionsv1.CustomResourceDefinition
	err = yaml.UnmarshalStrict(text, &v1)
	if err != nil {
		return CRD{}, err
	}

	apiextensionsv1.SetDefaults_CustomResourceDefinition(&v1)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&v1.Spec)
	v1.Status.StoredVersions = []string{v1.Spec.Versions[0].Name}
	var whole apiextensions.CustomResourceDefinition
	convert := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition
	if err := convert(&v1, &whole, nil); err != nil {
		return CRD{}, err
	}

	// The rules compile, and cost no more than the API server admits.
	errs := crdvalidation.ValidateCustomResourceDefinition(context.Background(), &whole)
	if len(errs) > 0 {
		return CRD{}, errs.ToAggregate()
	}

	props := whole.Spec.Validation.OpenAPIV3Schema // of the only version
	c := CRD{Group: v1.Spec.Group, Kind: v1.Spec.Names.Kind}
	c.Schema, err = structuralschema.NewStructural(props)
	if err != nil {
		return CRD{}, err
	}

	c.validator, _, err = validation.NewSchemaValidatorForVersion(props, version.MustParse(Oldest))
	c.rules = schemacel.NewValidator(c.Schema, true, celconfig.PerCallLimit)
	return c, err
}

// Check returns why the API server would call an object invalid; nil if it would not. It reads the object from JSON.
func (c CRD) Check(body []byte) error {
	var o any
	err := utiljson.Unmarshal(body, &o)
	if err != nil {
		return err
	}

	// The API server takes null for a field that is not set, unless the schema has another rule.
	defaulting.Default(o, c.Schema)
	defaulting.PruneNonNullableNullsWithoutDefaults(o, c.Schema)
	schemaErrs := validation.ValidateCustomResource(nil, o, c.validator)
	if len(schemaErrs) > 0 {
		return schemaErrs.ToAggregate()
	}

	ruleErrs, _ := c.rules.Validate(context.Background(), nil, c.Schema, o, nil, celconfig.RuntimeCELCostBudget)
	return ruleErrs.ToAggregate()
}

// Patched applies a JSON merge patch (RFC 7396) to an object as the API server does, and returns the result. If the API
// server would call the result invalid, it fails the test and returns the reason. Objects of other groups are valid.
func Patched(t testing.TB, o, patch map[string]any) (out map[string]any, err error) {
	out, err = merge(o, patch)
	if err != nil {
		t.Errorf("a real API server would refuse the patch %v: %v", patch, err)
	}

	return out, err
}

// merge applies a patch and checks the result.
func merge(o, patch map[string]any) (out map[string]any, err error) {
	object, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}

	change, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}

	body, err := jsonpatch.MergePatch(object, change)
	if err != nil {
		return nil, err
	}

	err = utiljson.Unmarshal(body, &out)
	if err != nil {
		return nil, err
	}
	return out, check(out, body)
}

// check checks an object, whose JSON is body.
func check(o map[string]any, body []byte) error {
	kinds, err := Read()
	if err != nil {
		return err
	}

	apiVersion, _ := o["apiVersion"].(string)
	if !strings.HasPrefix(apiVersion, kinds[0].Group+"/") {
		return nil
	}

	i := slices.IndexFunc(kinds, func(c CRD) bool { return c.Kind == o["kind"] })
	if i < 0 {
		return fmt.Errorf("unknown kind %v", o["kind"])
	}

	return kinds[i].Check(body)
}
