"""Extensions of Sphinx, one a subject, with the pages' styles, scripts and templates."""
