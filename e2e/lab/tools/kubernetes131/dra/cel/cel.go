// Package cel stands in for the compiler of device selectors. It refuses all of them: the API server does not serve
// resource.k8s.io, which is alpha in Kubernetes 1.31.
package cel

import (
	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// Compiler refuses expressions.
type Compiler struct{}

// Result is why an expression was refused.
type Result struct{ Error *cel.Error }

// GetCompiler is what the API server's validation asks for.
func GetCompiler() Compiler { return Compiler{} }

// CompileCELExpression refuses the expression.
func (Compiler) CompileCELExpression(string, environment.Type) Result {
	return Result{&cel.Error{Type: cel.ErrorTypeInvalid, Detail: "resource.k8s.io is not served"}}
}
