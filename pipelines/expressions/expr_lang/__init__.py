"""GlassFlow's expression language, expr-lang 1.17, translated to SQL: text, tokens, tree, folded tree, one scalar expression."""
